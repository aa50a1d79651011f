-- Do the ranks compete for cores?
--
-- `core_wait_pct` is the share of time in which the main thread could have run and had no core. Above a few percent,
-- there are too many processes or threads (`OMP_NUM_THREADS`, loader workers). `gil_wait_us` is how long a thread that
-- asks for the GIL waits for it. A single thread that runs Python all the time makes it some 5,000 µs, for it lets go
-- of the GIL only every 5 ms. Much more is C code that keeps the GIL, or several threads that want it: see `threads`,
-- and `python.stack`.

SELECT rank, COUNT(*) AS samples, AVG(cpu_pct) AS cpu_pct, AVG(core_wait_pct) AS core_wait_pct,
       MAX(core_wait_pct) AS worst_pct, AVG(context_switches_s) AS switches_s, AVG(gil_wait_us) AS gil_wait_us,
       AVG(host_cpu_pct) AS host_cpu_pct, MAX(threads) AS threads
FROM host.process_trace
GROUP BY rank
ORDER BY core_wait_pct DESC
