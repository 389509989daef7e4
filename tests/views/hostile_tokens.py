"""Tokens that try to inject code, or are hard to draw."""

HOSTILE = [
    "<script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked = 1">',
    "</script><script>window.hacked = 1</script>",
    "${window.hacked = 1}",
    "שלום",
    "\u202egnp.exe",
    "e\u0301\u0323\u0302" + "\u0301" * 300,
    "👩‍👩‍👧‍👦",
    "\x1b[31mred\x07\x00",
    "a\nb\tc",
    "\u2028",
    "$x^2$ \\frac{",
    "[bold]markup[/bold]",
    "日本語",
    "",
    "   ",
    "&amp;&lt;",
    "w" * 10_000,
]
