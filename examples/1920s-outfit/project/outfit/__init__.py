"""What to wear to a party in 1926."""

ALWAYS = ["drop-waist dress or three-piece suit", "T-bar shoes or Oxfords"]
FOR = {
    "sunny": ["straw boater"],
    "rainy": ["cloche hat", "trench coat"],
    "cold": ["cloche hat", "fur-collared coat", "gloves"],
}


def choose(day: str) -> list[str]:
    """The pieces for a day; a KeyError for weather that 1926 did not have."""
    return ALWAYS + FOR[day]
