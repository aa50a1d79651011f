-- How fast are collectives, by size?
--
-- Bandwidth is that of nccl-tests (`busbw`), in 10^9 bytes per second. On gloo an operation lasts from its issue, so it
-- includes waiting for a late rank and the median says little about the network; the best value is closest to what the
-- network can do.

SELECT backend, operation_type, group_size, CAST(2 ** CEIL(LOG2(bytes)) AS BIGINT) AS up_to_bytes, COUNT(*) AS n,
       MEDIAN(duration_ms) AS median_ms, MEDIAN(busbw_gbps) AS median_gb_s, MAX(busbw_gbps) AS best_gb_s
FROM python.nccl_trace
WHERE state = 'done' AND bytes > 0
GROUP BY ALL
ORDER BY ALL
