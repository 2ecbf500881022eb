# A suite for the example: one test that passes, one that fails, a report and results.
mkdir -p results; echo ok >results/1; echo not ok >results/2; echo all of it >report.txt
echo 1 ok; echo 2 not ok; echo one failed >&2; exit 1
