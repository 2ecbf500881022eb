import unittest

from outfit import FOR, choose


class Choose(unittest.TestCase):
    def test_every_day_has_shoes(self):
        for day in FOR:
            self.assertTrue(any("shoes" in piece for piece in choose(day)), day)

    def test_a_coat_when_it_rains(self):
        self.assertIn("trench coat", choose("rainy"))

    def test_unknown_weather(self):
        with self.assertRaises(KeyError):
            choose("raining frogs")


if __name__ == "__main__":
    unittest.main()
