"""Redis and NATS as the services feel them, and as the servers tell it themselves."""

from ..model import Board, Row, Variable, graph, number

P = 'pod=~"$pod"'
RED_ABOVE_0 = ((0, "green"), (0.000001, "red"))

BOARD = Board(
    uid="muster-stores",
    title="Muster / Stores",
    description="Redis and NATS: answer times, faults, memory, storage, messages that wait.",
    variables=[Variable("pod", "Replica", "muster_build_info", "pod")],
    rows=[
        Row("Now", [
            number("AOF", "1 while every Redis primary writes its log. 0: a restart forgets everything.", "none",
                   "max(muster_redis_aof_enabled)", "log", width=6, steps=((0, "red"), (1, "green"))),
            number("Eviction", "1 while a Redis primary may evict keys. Must be 0.", "none",
                   "max(muster_redis_evicts)", "eviction", width=6, steps=RED_ABOVE_0),
            number("NATS storage", "Share of JetStream's storage in use.", "percentunit",
                   "max(muster_nats_storage_used_bytes) / (max(muster_nats_storage_limit_bytes) > 0)", "used", width=6,
                   steps=((0, "green"), (0.7, "orange"), (0.85, "red"))),
            number("Age of the last backup", "How long ago the last backup succeeded.", "s",
                   "time() - max(muster_backup_last_success_timestamp_seconds)", "age", width=6,
                   steps=((0, "green"), (93600, "red"))),
        ]),
        Row("Redis", [
            graph("Calls to Redis", "Time of a call to Redis as a service sees it; a pipeline is one call.", "s",
                  (f"histogram_quantile(0.5, sum by (le) (rate(muster_redis_command_seconds_bucket{{{P}}}[$__rate_interval])))", "p50"),
                  (f"histogram_quantile(0.99, sum by (le) (rate(muster_redis_command_seconds_bucket{{{P}}}[$__rate_interval])))", "p99")),
            graph("Faults", "Calls to Redis and NATS that failed or timed out, within ten minutes.", "none",
                  ("muster:store_faults:increase10m", "{{store}}")),
            graph("Memory", "Memory of each Redis node, and its limit where one is set.", "bytes",
                  ("redis_memory_used_bytes", "{{instance}} used"), ("redis_memory_max_bytes > 0", "{{instance}} limit")),
            graph("Commands", "Commands per second of each Redis node.", "ops",
                  ("rate(redis_commands_processed_total[$__rate_interval])", "{{instance}}")),
            graph("Connections", "Connections of the services by state, and clients of each node.", "none",
                  (f"sum by (state) (muster_redis_connections{{{P}}})", "{{state}}"),
                  ("redis_connected_clients", "{{instance}} clients")),
            graph("Keys and log", "Keys of each node; the size of its log.", "none",
                  ("sum by (instance) (redis_db_keys)", "{{instance}} keys"),
                  ("redis_aof_current_size_bytes", "{{instance}} log bytes")),
        ]),
        Row("NATS", [
            graph("Bytes by stream", "Bytes that each stream keeps, and its limit where it has one.", "bytes",
                  ("max by (stream) (muster_nats_stream_bytes)", "{{stream}}"),
                  ("max by (stream) (muster_nats_stream_limit_bytes) > 0", "{{stream}} limit"), width=8),
            graph("Messages by stream", "Messages that each stream keeps.", "none",
                  ("max by (stream) (muster_nats_stream_messages)", "{{stream}}"), width=8),
            graph("Copies out of step", "Copies of each stream that are offline or behind.", "none",
                  ("max by (stream) (muster_nats_stream_replicas_lagging)", "{{stream}}"), width=8),
            graph("Messages that wait", "Messages that the schedulers have still to get, by consumer.", "none",
                  ("max by (consumer) (muster_bus_consumer_pending)", "{{consumer}}"), width=8),
            graph("Submit lag", "Age of the oldest submit that no scheduler has handled. Past 60 s submits get 503.", "s",
                  ("max(muster_submit_lag_seconds)", "lag"), width=8),
            graph("Publish failures", "Publishes per second that NATS did not confirm, and messages published again.", "ops",
                  ("sum(rate(muster_bus_publish_failures_total[$__rate_interval]))", "not confirmed"),
                  ("sum(rate(muster_replayed_total[$__rate_interval]))", "published again"), width=8),
        ]),
    ],
)
