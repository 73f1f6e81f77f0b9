import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.GroupSpec;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.MemberSubscription;
import org.apache.kafka.coordinator.group.api.assignor.PartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.SimpleAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;

/** Runs Apache Kafka's own assignors over groups read from standard input, line by line; see test_assignors.py. */
public class RunAssignors {
    record Member(Optional<String> instanceId, Set<Uuid> topics, Map<Uuid, Set<Integer>> partitions)
        implements MemberSubscription, MemberAssignment {
        public Optional<String> rackId() {
            return Optional.empty();
        }

        public Set<Uuid> subscribedTopicIds() {
            return topics;
        }
    }

    static Uuid uuid(String hex) {
        return new Uuid(Long.parseUnsignedLong(hex.substring(0, 16), 16), Long.parseUnsignedLong(hex.substring(16), 16));
    }

    static String hex(Uuid id) {
        return String.format("%016x%016x", id.getMostSignificantBits(), id.getLeastSignificantBits());
    }

    static Map<Uuid, Set<Integer>> partitions(String text) {
        Map<Uuid, Set<Integer>> out = new HashMap<>();
        for (String each : text.split(";")) {
            if (each.isEmpty()) continue;
            String[] halves = each.split(":");
            List<Integer> indexes = new ArrayList<>();
            for (String index : halves[1].split(",")) indexes.add(Integer.parseInt(index));
            out.put(uuid(halves[0]), Collections.unmodifiableSet(new HashSet<>(indexes)));
        }
        return Collections.unmodifiableMap(out);
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        Map<Uuid, Integer> counts = new HashMap<>();
        Map<Uuid, Set<Integer>> assignable = new HashMap<>();
        Map<String, Member> members = new HashMap<>();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\\|", -1);
            if (words[0].equals("topic")) {
                counts.put(uuid(words[1]), Integer.parseInt(words[2]));
            } else if (words[0].equals("assignable")) {
                assignable.putAll(partitions(words[1]));
            } else if (words[0].equals("member")) {
                Set<Uuid> topics = new HashSet<>();
                for (String topic : words[3].split(",")) if (!topic.isEmpty()) topics.add(uuid(topic));
                Optional<String> instance = words[2].isEmpty() ? Optional.empty() : Optional.of(words[2]);
                members.put(words[1], new Member(instance, topics, partitions(words[4])));
            } else {
                print(words[1], words[2].equals("1"), counts, assignable, members);
                counts = new HashMap<>();
                assignable = new HashMap<>();
                members = new HashMap<>();
            }
        }
    }

    static void print(
        String name, boolean homogeneous, Map<Uuid, Integer> counts, Map<Uuid, Set<Integer>> assignable,
        Map<String, Member> members
    ) {
        PartitionAssignor assignor = switch (name) {
            case "range" -> new RangeAssignor();
            case "simple" -> new SimpleAssignor();
            default -> new UniformAssignor();
        };
        Map<Uuid, Set<Integer>> taken = new HashMap<>();
        for (Member member : members.values())
            member.partitions().forEach((id, indexes) -> taken.computeIfAbsent(id, __ -> new HashSet<>()).addAll(indexes));
        GroupSpec spec = new GroupSpec() {
            public Collection<String> memberIds() {
                return members.keySet();
            }

            public SubscriptionType subscriptionType() {
                return homogeneous ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
            }

            public boolean isPartitionAssigned(Uuid topicId, int partition) {
                return taken.getOrDefault(topicId, Set.of()).contains(partition);
            }

            public boolean isPartitionAssignable(Uuid topicId, int partition) {
                return !name.equals("simple") || assignable.getOrDefault(topicId, Set.of()).contains(partition);
            }

            public MemberSubscription memberSubscription(String memberId) {
                return members.get(memberId);
            }

            public MemberAssignment memberAssignment(String memberId) {
                return members.get(memberId);
            }
        };
        SubscribedTopicDescriber topics = new SubscribedTopicDescriber() {
            public int numPartitions(Uuid topicId) {
                return counts.getOrDefault(topicId, -1);
            }

            public Set<String> racksForPartition(Uuid topicId, int partition) {
                return Set.of();
            }
        };
        GroupAssignment assignment = assignor.assign(spec, topics);
        StringBuilder out = new StringBuilder();
        new TreeMap<>(assignment.members()).forEach((memberId, assigned) -> {
            Map<String, Set<Integer>> sorted = new TreeMap<>();
            assigned.partitions().forEach((id, indexes) -> {
                if (!indexes.isEmpty()) sorted.put(hex(id), new TreeSet<>(indexes));
            });
            out.append(memberId).append('|');
            sorted.forEach((id, indexes) -> out.append(id).append(indexes));
            out.append(' ');
        });
        System.out.println(out);
    }
}
