import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataCache;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataTopicPartitioner;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;

/**
 * Answers each line of standard input with a line: what Apache Kafka's classes of remote log metadata make of it.
 *
 * serde HEX: the value, read and written again, and its fields; partition UUID PARTITION COUNT; new; loaded; add HEX and
 * update HEX change a RemoteLogMetadataCache; find, txn, highest and list ask it. An exception is answered by its class.
 * Answers begin with "= ": loggers write to standard output too.
 */
public final class RemoteMetadata {
    private static final RemoteLogMetadataSerde SERDE = new RemoteLogMetadataSerde();
    private static RemoteLogMetadataCache cache = new RemoteLogMetadataCache();

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder answers = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String answer;
            try {
                answer = answer(line.split(" "));
            } catch (InvocationTargetException error) {
                answer = error.getCause().getClass().getSimpleName();
            } catch (RuntimeException error) {
                answer = "refused";
            }
            answers.append("= ").append(answer).append('\n');
        }
        out.print(answers);
        out.flush();
    }

    private static String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "serde":
                RemoteLogMetadata read = SERDE.deserialize(bytes(words[1]));
                return HexFormat.of().formatHex(SERDE.serialize(read)) + " " + read.toString().replaceAll("[^ -~]", "?");
            case "partition":
                TopicIdPartition owner = new TopicIdPartition(uuid(words[1]), new TopicPartition("t", Integer.parseInt(words[2])));
                return "" + new RemoteLogMetadataTopicPartitioner(Integer.parseInt(words[3])).metadataPartition(owner);
            case "new":
                cache = new RemoteLogMetadataCache();
                return "ok";
            case "loaded":
                call("markInitialized");
                return "ok";
            case "add":
                call("addCopyInProgressSegment", (RemoteLogSegmentMetadata) SERDE.deserialize(bytes(words[1])));
                return "ok";
            case "update":
                call("updateRemoteLogSegmentMetadata", (RemoteLogSegmentMetadataUpdate) SERDE.deserialize(bytes(words[1])));
                return "ok";
            case "find":
                return id((Optional<?>) call("remoteLogSegmentMetadata", Integer.parseInt(words[1]), Long.parseLong(words[2])));
            case "txn":
                return id((Optional<?>) call("nextSegmentWithTxnIndex", Integer.parseInt(words[1]), Long.parseLong(words[2])));
            case "highest":
                return "" + ((Optional<?>) call("highestOffsetForEpoch", Integer.parseInt(words[1]))).map(Object::toString).orElse("-");
            case "list":
                return ids((Iterator<?>) call("listRemoteLogSegments", Integer.parseInt(words[1])));
            default:
                return ids((Iterator<?>) call("listAllRemoteLogSegments"));
        }
    }

    private static Object call(String name, Object... arguments) throws Exception {
        for (Method method : RemoteLogMetadataCache.class.getDeclaredMethods()) {
            if (!method.getName().equals(name) || method.getParameterCount() != arguments.length) continue;
            method.setAccessible(true);
            return method.invoke(cache, arguments);
        }
        throw new NoSuchMethodException(name);
    }

    private static String id(Optional<?> found) {
        return found.map(each -> hex(((RemoteLogSegmentMetadata) each).remoteLogSegmentId().id())).orElse("-");
    }

    private static String ids(Iterator<?> found) {
        List<String> names = new ArrayList<>();
        while (found.hasNext()) {
            RemoteLogSegmentMetadata each = (RemoteLogSegmentMetadata) found.next();
            names.add(each.startOffset() + ":" + each.state().id() + ":" + hex(each.remoteLogSegmentId().id()));
        }
        return String.join(",", names);
    }

    private static byte[] bytes(String hex) {
        return HexFormat.of().parseHex(hex);
    }

    private static Uuid uuid(String hex) {
        ByteBuffer buffer = ByteBuffer.wrap(bytes(hex));
        return new Uuid(buffer.getLong(), buffer.getLong());
    }

    private static String hex(Uuid id) {
        return HexFormat.of().formatHex(ByteBuffer.allocate(16).putLong(id.getMostSignificantBits()).putLong(id.getLeastSignificantBits()).array());
    }
}
