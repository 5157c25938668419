"""Numbers in words: a task whose every answer is known."""

_ONES = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def number_words(n: int) -> str:
    """Return `n`, from 0 to 999, as British English writes it: 347 is "three hundred and forty-seven"."""
    if n >= 100:
        return _ONES[n // 100] + " hundred" + (" and " + number_words(n % 100) if n % 100 else "")
    if n < 20:
        return _ONES[n]
    return _TENS[n // 10 - 2] + ("-" + _ONES[n % 10] if n % 10 else "")
