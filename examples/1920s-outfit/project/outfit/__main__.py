import sys

from . import choose

print("\n".join(choose(sys.argv[1])))
