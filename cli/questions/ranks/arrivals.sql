-- What did one collective look like on two ranks?
--
-- One row per operation: the same number in the same group. `rank_1_later_ms` is how much later rank 1 arrived
-- (negative if it arrived earlier); between hosts it is as accurate as their clocks. The rank that arrives late has the
-- short duration, the rank that waits the long one. A gloo group that also sends between two ranks numbers those sends
-- too: for such a group, and for more ranks, use `probe.collectives`.

SELECT a.step, a.group_seq, a.operation_type, a.bytes, a.source,
       (EPOCH_US(b.time) - EPOCH_US(a.time)) / 1e3 AS rank_1_later_ms,
       a.duration_ms AS rank_0_ms, b.duration_ms AS rank_1_ms
FROM python.nccl_trace a JOIN python.nccl_trace b USING (group_name, group_seq, operation_type)
WHERE a.rank = 0 AND b.rank = 1
ORDER BY a.step DESC, a.group_seq DESC
LIMIT 8
