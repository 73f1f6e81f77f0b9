import java.io.*;
import java.nio.ByteBuffer;
import java.nio.file.*;
import java.util.*;
import org.apache.kafka.server.log.remote.storage.*;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;

/** A remote storage that copies segments and indexes into a directory: what Kafka's own tests use is not published. */
public class FileTier implements RemoteStorageManager {
    private Path directory;

    @Override
    public void configure(Map<String, ?> configs) {
        directory = Paths.get((String) configs.get("dir"));
    }

    private Path path(RemoteLogSegmentMetadata segment, String part) {
        var of = segment.remoteLogSegmentId().topicIdPartition();
        return directory.resolve(of.topicId() + "-" + of.partition())
            .resolve(String.format("%020d-%s.%s", segment.startOffset(), segment.remoteLogSegmentId().id(), part));
    }

    @Override
    public Optional<CustomMetadata> copyLogSegmentData(RemoteLogSegmentMetadata segment, LogSegmentData data)
            throws RemoteStorageException {
        try {
            Files.createDirectories(path(segment, "log").getParent());
            Files.copy(data.logSegment(), path(segment, "log"));
            Files.copy(data.offsetIndex(), path(segment, "OFFSET"));
            Files.copy(data.timeIndex(), path(segment, "TIMESTAMP"));
            if (data.transactionIndex().isPresent())
                Files.copy(data.transactionIndex().get(), path(segment, "TRANSACTION"));
            Files.copy(data.producerSnapshotIndex(), path(segment, "PRODUCER_SNAPSHOT"));
            try (var out = Files.newOutputStream(path(segment, "LEADER_EPOCH"))) {
                out.write(data.leaderEpochIndex().array(), 0, data.leaderEpochIndex().limit());
            }
            return Optional.empty();
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start) throws RemoteStorageException {
        return fetchLogSegment(segment, start, Integer.MAX_VALUE);
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start, int end)
            throws RemoteStorageException {
        try {
            var in = Files.newInputStream(path(segment, "log"));
            in.skipNBytes(start);
            return in;
        } catch (IOException error) {
            throw new RemoteResourceNotFoundException(error);
        }
    }

    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata segment, IndexType type) throws RemoteStorageException {
        try {
            return Files.newInputStream(path(segment, type.name()));
        } catch (IOException error) {
            throw new RemoteResourceNotFoundException(error);
        }
    }

    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata segment) throws RemoteStorageException {
        try {
            for (var part : List.of("log", "OFFSET", "TIMESTAMP", "TRANSACTION", "PRODUCER_SNAPSHOT", "LEADER_EPOCH"))
                Files.deleteIfExists(path(segment, part));
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
    }

    @Override
    public void close() {}
}
