"""Text from elsewhere (names of files, labels and columns, results) made harmless for where it is shown.

| goes to            | function   |
| ---                | ---        |
| a terminal, a log  | `say`      |
| Markdown, as words | `markdown` |
| Markdown, as code  | `code`     |
| HTML               | `html`     |
| a command line     | `papers.variants.given`, for parameters |
"""

import html as _html
import re
import sys


def plain(text: object, keep: str = "\n\t") -> str:
    r"""The text with characters that cannot be seen, such as a terminal's commands, written as escapes.

    >>> plain("a\x1b[2J\u202eb")
    'a\\x1b[2J\\u202eb'
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(each if each.isprintable() or each in keep else ascii(each)[1:-1] for each in shown)


def say(*lines: object, error: bool = False) -> None:
    """Print lines at once, without characters that a terminal would obey; `error` sends them to stderr.

    >>> say("a\\x07", "b")
    a\\x07
    b
    """
    for line in lines:
        print(plain(line), file=sys.stderr if error else sys.stdout, flush=True)


def html(text: object) -> str:
    """The text as HTML shows it, also between quotes.

    >>> html('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    return _html.escape(_one_line(text))


def markdown(text: object) -> str:
    r"""The text as words in a paragraph or a cell of a table: none of it is a tag, a link, a formula, an emphasis.

    >>> markdown("<img src=x> | *a_b* `c` [d](e) $f$")
    '&lt;img src=x&gt; \\| \\*a_b\\* \\`c\\` \\[d\\](e) \\$f\\$'
    """
    tags = _html.escape(_one_line(text), quote=False)
    return re.sub(r"[\\`*\[\]|$~{}]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", tags)


def code(text: object) -> str:
    """The text as code in a line of Markdown, not in a table.

    >>> code("a | b"), code("a `b`")
    ('`a | b`', '`` a `b` ``')
    """
    shown = plain(text, keep="")
    ticks = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    room = " " if "`" in shown else ""
    return f"{ticks}{room}{shown}{room}{ticks}"


def _one_line(text: object) -> str:
    return plain(re.sub(r"\s+", " ", str(text)), keep="")
