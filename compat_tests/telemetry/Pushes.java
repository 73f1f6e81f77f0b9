import java.time.Duration;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A producer that writes ten records, prints its client instance id, lives until standard input ends, and closes.
 *
 * Arguments: bootstrap servers, topic, client id.
 */
public class Pushes {
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0], "client.id", arguments[2]);
        try (KafkaProducer<String, String> producer =
                 new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < 10; number++) {
                producer.send(new ProducerRecord<>(arguments[1], "value")).get();
            }
            System.out.println(producer.clientInstanceId(Duration.ofSeconds(20)));
            System.out.flush();
            System.in.read();
        }
    }
}
