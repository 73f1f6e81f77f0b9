import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.server.namenode.NameNodeAdapter;

/** HDFS in this process: `MiniHdfs DIRECTORY`. Prints the port of its name node; then obeys the lines of stdin. */
public class MiniHdfs {
    public static void main(String[] arguments) throws Exception {
        Configuration conf = new HdfsConfiguration();
        conf.set("dfs.replication", "1");
        conf.setInt("dfs.namenode.safemode.extension", 0);
        MiniDFSCluster cluster =
            new MiniDFSCluster.Builder(conf, new File(arguments[0])).numDataNodes(1).build();
        cluster.waitActive();
        System.out.println("= " + cluster.getNameNodePort());
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            switch (order) {
                case "enter safe mode" -> NameNodeAdapter.enterSafeMode(cluster.getNameNode(), false);
                case "leave safe mode" -> NameNodeAdapter.leaveSafeMode(cluster.getNameNode());
                case "restart name node" -> cluster.restartNameNode(true);
                case "restart data node" -> {
                    cluster.restartDataNode(0, true);
                    cluster.waitActive();
                }
                default -> throw new IllegalArgumentException(order);
            }
            System.out.println("= done");
        }
        cluster.shutdown(true);
    }
}
