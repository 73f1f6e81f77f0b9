import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Supplier;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.AbstractConfig;
import org.apache.kafka.common.message.DeleteShareGroupStateRequestData;
import org.apache.kafka.common.message.InitializeShareGroupStateRequestData;
import org.apache.kafka.common.message.ReadShareGroupStateRequestData;
import org.apache.kafka.common.message.ReadShareGroupStateSummaryRequestData;
import org.apache.kafka.common.message.WriteShareGroupStateRequestData;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataDelta;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataImage;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.common.runtime.CoordinatorResult;
import org.apache.kafka.coordinator.share.ShareCoordinatorConfig;
import org.apache.kafka.coordinator.share.ShareCoordinatorRecordSerde;
import org.apache.kafka.coordinator.share.ShareCoordinatorShard;
import org.apache.kafka.coordinator.share.metrics.ShareCoordinatorMetrics;
import org.apache.kafka.timeline.SnapshotRegistry;

/** Runs Apache Kafka's own shard over operations read from standard input, line by line; see test_beside_kafka.py. */
public class RunShard {
    static long now;
    static long offset;
    static final ShareCoordinatorRecordSerde SERDE = new ShareCoordinatorRecordSerde();
    static ShareCoordinatorShard shard;

    static class Clock implements Time {
        public long milliseconds() { return now; }
        public long nanoseconds() { return now * 1_000_000; }
        public void sleep(long ms) { now += ms; }
        public void waitObject(Object obj, Supplier<Boolean> condition, long deadlineMs) { }
    }

    record Topic(Uuid id, int partitionCount) implements CoordinatorMetadataImage.TopicMetadata {
        public String name() { return id.toString(); }
        public List<String> partitionRacks(int partition) { return List.of(); }
    }

    record Image(Map<Uuid, Integer> counts) implements CoordinatorMetadataImage {
        public Set<Uuid> topicIds() { return counts.keySet(); }
        public Set<String> topicNames() { return Set.of(); }
        public Optional<TopicMetadata> topicMetadata(String name) { return Optional.empty(); }
        public Optional<TopicMetadata> topicMetadata(Uuid id) {
            return counts.containsKey(id) ? Optional.of(new Topic(id, counts.get(id))) : Optional.empty();
        }
        public CoordinatorMetadataDelta emptyDelta() { return null; }
        public long version() { return 1; }
        public boolean isEmpty() { return false; }
    }

    static Uuid uuid(String hex) {
        return new Uuid(Long.parseUnsignedLong(hex.substring(0, 16), 16), Long.parseUnsignedLong(hex.substring(16), 16));
    }

    /** LogContext is in another package since Apache Kafka 4.4. */
    static SnapshotRegistry registry() throws Exception {
        var constructor = SnapshotRegistry.class.getConstructors()[0];
        return (SnapshotRegistry) constructor.newInstance(
            constructor.getParameterTypes()[0].getDeclaredConstructor().newInstance());
    }

    /** Apply the records, as the runtime does; return them as text. */
    static String applied(CoordinatorResult<?, CoordinatorRecord> result) {
        StringBuilder out = new StringBuilder();
        for (CoordinatorRecord record : result.records()) {
            byte[] value = SERDE.serializeValue(record);
            out.append(' ').append(HexFormat.of().formatHex(SERDE.serializeKey(record)));
            out.append('=').append(value == null ? "" : HexFormat.of().formatHex(value));
            shard.replay(offset++, -1L, (short) -1, record);
        }
        return out.toString();
    }

    public static void main(String[] args) throws Exception {
        ShareCoordinatorConfig config = new ShareCoordinatorConfig(new AbstractConfig(
            ShareCoordinatorConfig.CONFIG_DEF,
            Map.of("share.coordinator.snapshot.update.records.per.snapshot", Integer.parseInt(args[0])), false));
        shard = new ShareCoordinatorShard.Builder(config)
            .withSnapshotRegistry(registry())
            .withCoordinatorMetrics(new ShareCoordinatorMetrics(new Metrics()))
            .withTopicPartition(new TopicPartition("__share_group_state", 0)).withTime(new Clock()).build();
        shard.onLoaded(new Image(Map.of(uuid(args[1]), 2, uuid(args[2]), 2)));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) System.out.println("> " + answer(line.split(" ")));
    }

    static String answer(String[] word) {
        now = Long.parseLong(word[1]);
        if (word[0].equals("cold")) return "cold" + applied(shard.snapshotColdPartitions());
        if (word[0].equals("prune")) return "prune " + shard.lastRedundantOffset().response().orElse(0L);
        String group = word[2];
        Uuid topic = uuid(word[3]);
        int partition = Integer.parseInt(word[4]);
        switch (word[0]) {
            case "initialize": {
                var data = new InitializeShareGroupStateRequestData.PartitionData().setPartition(partition)
                    .setStateEpoch(Integer.parseInt(word[5])).setStartOffset(Long.parseLong(word[6]));
                var asked = new InitializeShareGroupStateRequestData().setGroupId(group).setTopics(List.of(
                    new InitializeShareGroupStateRequestData.InitializeStateData().setTopicId(topic).setPartitions(List.of(data))));
                var result = shard.initializeState(asked);
                var found = result.response().results().get(0).partitions().get(0);
                return found.errorCode() + "|" + found.errorMessage() + applied(result);
            }
            case "read": {
                var data = new ReadShareGroupStateRequestData.PartitionData().setPartition(partition)
                    .setLeaderEpoch(Integer.parseInt(word[5]));
                var asked = new ReadShareGroupStateRequestData().setGroupId(group).setTopics(List.of(
                    new ReadShareGroupStateRequestData.ReadStateData().setTopicId(topic).setPartitions(List.of(data))));
                var result = shard.readStateAndMaybeUpdateLeaderEpoch(asked);
                var found = result.response().results().get(0).partitions().get(0);
                List<String> batches = new ArrayList<>();
                found.stateBatches().forEach(each -> batches.add(each.firstOffset() + "," + each.lastOffset() + ","
                    + each.deliveryState() + "," + each.deliveryCount()));
                return found.errorCode() + "|" + found.errorMessage() + "|" + found.stateEpoch() + "|" + found.startOffset()
                    + "|" + String.join(";", batches) + applied(result);
            }
            case "summary": {
                var data = new ReadShareGroupStateSummaryRequestData.PartitionData().setPartition(partition);
                var asked = new ReadShareGroupStateSummaryRequestData().setGroupId(group).setTopics(List.of(
                    new ReadShareGroupStateSummaryRequestData.ReadStateSummaryData().setTopicId(topic).setPartitions(List.of(data))));
                var result = shard.readStateSummary(asked);
                var found = result.response().results().get(0).partitions().get(0);
                return found.errorCode() + "|" + found.errorMessage() + "|" + found.stateEpoch() + "|" + found.leaderEpoch()
                    + "|" + found.startOffset() + "|" + found.deliveryCompleteCount() + applied(result);
            }
            case "write": {
                List<WriteShareGroupStateRequestData.StateBatch> batches = new ArrayList<>();
                for (int at = 9; at < word.length; at++) {
                    String[] part = word[at].split(",");
                    batches.add(new WriteShareGroupStateRequestData.StateBatch().setFirstOffset(Long.parseLong(part[0]))
                        .setLastOffset(Long.parseLong(part[1])).setDeliveryState(Byte.parseByte(part[2]))
                        .setDeliveryCount(Short.parseShort(part[3])));
                }
                var data = new WriteShareGroupStateRequestData.PartitionData().setPartition(partition)
                    .setStateEpoch(Integer.parseInt(word[5])).setLeaderEpoch(Integer.parseInt(word[6]))
                    .setStartOffset(Long.parseLong(word[7])).setDeliveryCompleteCount(Integer.parseInt(word[8]))
                    .setStateBatches(batches);
                var asked = new WriteShareGroupStateRequestData().setGroupId(group).setTopics(List.of(
                    new WriteShareGroupStateRequestData.WriteStateData().setTopicId(topic).setPartitions(List.of(data))));
                var result = shard.writeState(asked);
                var found = result.response().results().get(0).partitions().get(0);
                return found.errorCode() + "|" + found.errorMessage() + applied(result);
            }
            case "delete": {
                var data = new DeleteShareGroupStateRequestData.PartitionData().setPartition(partition);
                var asked = new DeleteShareGroupStateRequestData().setGroupId(group).setTopics(List.of(
                    new DeleteShareGroupStateRequestData.DeleteStateData().setTopicId(topic).setPartitions(List.of(data))));
                var result = shard.deleteState(asked);
                var found = result.response().results().get(0).partitions().get(0);
                return found.errorCode() + "|" + found.errorMessage() + applied(result);
            }
            default:
                throw new IllegalArgumentException(word[0]);
        }
    }
}
