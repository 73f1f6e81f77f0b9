import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

import org.apache.kafka.coordinator.group.api.streams.assignor.TopologyDescriber;
import org.apache.kafka.coordinator.group.streams.assignor.AssignmentConfigsImpl;
import org.apache.kafka.coordinator.group.streams.assignor.GroupSpecImpl;
import org.apache.kafka.coordinator.group.streams.assignor.MemberMetadataAndStateImpl;
import org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor;

/** Runs Apache Kafka's own sticky assignor over groups read from standard input; see test_sticky.py. */
public class RunStickyAssignor {
    record Subtopology(int tasks, boolean stateful) {
    }

    static Map<String, Set<Integer>> tasks(String text) {
        Map<String, Set<Integer>> out = new HashMap<>();
        for (String each : text.split(","))
            if (!each.isEmpty())
                out.computeIfAbsent(each.split(":")[0], __ -> new HashSet<>()).add(Integer.parseInt(each.split(":")[1]));
        return out;
    }

    static Map<String, Map<Integer, Long>> offsets(String text) {
        Map<String, Map<Integer, Long>> out = new HashMap<>();
        for (String each : text.split(",")) {
            String[] parts = each.split(":");
            if (parts.length == 3)
                out.computeIfAbsent(parts[0], __ -> new HashMap<>()).put(Integer.parseInt(parts[1]), Long.parseLong(parts[2]));
        }
        return out;
    }

    static String printed(Map<String, Set<Integer>> tasks) {
        StringBuilder out = new StringBuilder();
        new TreeMap<>(tasks).forEach((name, indexes) -> out.append(name).append(new TreeSet<>(indexes)));
        return out.toString();
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        final TreeMap<String, Subtopology> topology = new TreeMap<>();
        Map<String, MemberMetadataAndStateImpl> members = new HashMap<>();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\\|", -1);
            if (words[0].equals("subtopology")) {
                topology.put(words[1], new Subtopology(Integer.parseInt(words[2]), words[3].equals("1")));
            } else if (words[0].equals("member")) {
                members.put(words[1], new MemberMetadataAndStateImpl(Optional.empty(), Optional.empty(), words[2], Map.of(),
                    tasks(words[3]), tasks(words[4]), Map.of(), offsets(words[5]), Map.of()));
            } else {
                TopologyDescriber describer = new TopologyDescriber() {
                    final TreeMap<String, Subtopology> known = new TreeMap<>(topology);

                    public List<String> subtopologies() {
                        return List.copyOf(known.keySet());
                    }

                    public int maxNumInputPartitions(String name) {
                        return known.get(name).tasks();
                    }

                    public boolean isStateful(String name) {
                        return known.get(name).stateful();
                    }
                };
                var configs = new AssignmentConfigsImpl(Integer.parseInt(words[1]), List.of());
                var assignment = new StickyTaskAssignor().assign(new GroupSpecImpl(members, configs), describer);
                StringBuilder out = new StringBuilder();
                new TreeMap<>(assignment.members()).forEach((id, assigned) -> out.append(id).append('|')
                    .append(printed(assigned.activeTasks())).append('|').append(printed(assigned.standbyTasks())).append(' '));
                System.out.println(out);
                topology.clear();
                members = new HashMap<>();
            }
        }
    }
}
