// Prints every topic, broker, client-metrics and group config that Apache Kafka defines, one JSON object a line.
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.server.config.DynamicBrokerConfig;
import org.apache.kafka.server.config.ServerTopicConfigSynonyms;
import org.apache.kafka.server.metrics.ClientMetricsConfigs;
import org.apache.kafka.storage.internals.log.LogConfig;

public class PrintConfigs {
    public static void main(String[] args) {
        Map<String, String> modes = DynamicBrokerConfig.dynamicConfigUpdateModes();
        LogConfig.configKeys().values().forEach(key -> {
            List<String> synonyms = new ArrayList<>();
            ServerTopicConfigSynonyms.ALL_TOPIC_CONFIG_SYNONYMS.getOrDefault(key.name, List.of()).forEach(
                each -> synonyms.add("[" + quote(each.name()) + "," + quote(each.converter().apply("1")) + "]"));
            print("topic", key, null, synonyms);
        });
        AbstractKafkaConfig.CONFIG_DEF.configKeys().values().forEach(
            key -> print("broker", key, modes.getOrDefault(key.name, "read-only"), List.of()));
        ClientMetricsConfigs.configDef().configKeys().values().forEach(
            key -> print("client-metrics", key, null, List.of()));
        GroupConfig.CONFIG_DEF.configKeys().values().forEach(key -> {
            Optional<String> synonym = GroupConfig.brokerSynonym(key.name);
            print("group", key, null, synonym.map(name -> List.of("[" + quote(name) + ",\"1\"]")).orElse(List.of()));
        });
    }

    private static void print(String kind, ConfigDef.ConfigKey key, String mode, List<String> synonyms) {
        String standard = key.hasDefault() ? ConfigDef.convertToString(key.defaultValue, key.type) : null;
        System.out.println("{\"kind\":" + quote(kind) + ",\"name\":" + quote(key.name)
            + ",\"type\":" + quote(key.type.name()) + ",\"default\":" + quote(standard)
            + ",\"validator\":" + quote(key.validator == null ? null : key.validator.toString())
            + ",\"internal\":" + key.internalConfig + ",\"mode\":" + quote(mode)
            + ",\"synonyms\":[" + String.join(",", synonyms) + "]}");
    }

    private static String quote(String text) {
        return text == null ? "null" : "\"" + text.replace("\\", "\\\\").replace("\"", "\\\"") + "\"";
    }
}
