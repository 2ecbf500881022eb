# A service for the example: answers its first line, then waits to be ended.
read -r word; echo pong to $word; exec sleep 60
