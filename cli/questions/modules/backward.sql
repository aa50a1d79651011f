-- How much longer is backward than forward, block by block?
--
-- A ratio of two is usual where matrix products dominate. A block far above it is worth a look; a block far below it
-- has frozen weights, or an input that needs no gradient. `depth = 2` selects what a model under DDP calls directly;
-- without a wrapper, use 1.

SELECT module,
       AVG(total_duration) FILTER (stage = 'forward') * 1e3 AS forward_ms,
       AVG(total_duration) FILTER (stage = 'backward') * 1e3 AS backward_ms,
       backward_ms / forward_ms AS ratio
FROM python.torch_trace
WHERE depth = 2 AND NOT recompute
GROUP BY module
ORDER BY backward_ms DESC
