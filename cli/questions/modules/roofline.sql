-- Which modules are bound by arithmetic, and which by memory?
--
-- After `probe 4242 capture --shapes`, and of a CPU after `probe doctor --peak --threads 1` on the idle machine, with
-- as many threads as the job has. Where the intensity (`flops_a_byte`) is above what the processor can do per byte it
-- moves, arithmetic is the limit, and a narrower type or tensor cores help; below, memory is, and fusing or larger
-- batches do. `overhead` and `launch` mean neither: the operators are too small, or others have the cores, as here.
-- `known_pct` is the share of the time in operators whose cost is known; bytes are those of their tensors, so caches
-- can make a module faster than its memory.

SELECT module, stage, MODE(bound) AS bound, 100 * SUM(took) / SUM(SUM(took)) OVER () AS pct,
       SUM(flops) / SUM(bytes) AS flops_a_byte, SUM(flops) FILTER (known >= 0) / SUM(known) / 1e9 AS gflops_s,
       SUM(bytes) FILTER (known >= 0) / SUM(known) / 1e9 AS gbps, 100 * SUM(peak_share * known) / SUM(known) AS peak_pct,
       100 * SUM(known) / SUM(took) AS known_pct
FROM (SELECT *, CASE WHEN processor IS NULL OR known_pct IS NOT NULL THEN COALESCE(device_duration, duration) END AS took,
             took * known_pct / 100 AS known FROM python.module_cost)
GROUP BY module, stage
ORDER BY pct DESC
LIMIT 10
