# A suite for the example: one test that passes, one that fails, and a report.
echo 1 ok; echo 2 not ok; echo all of it >report.txt; echo one failed >&2; exit 1
