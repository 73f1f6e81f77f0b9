import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/**
 * Runs main methods of Kafka's tools one after the other, so that only the first one waits for the JVM and its classes.
 *
 * It prints a line when it is ready. Each line of standard input is a run, in Base64 and with spaces between its parts: the files of standard input,
 * output and error, the class, its arguments. The answer is a line with the exit status. If a tool goes on after it has
 * called exit, the line ends with "last", and this program exits. Where a tool exits past Kafka's own Exit, the program
 * exits with its status and without an answer.
 */
public final class Tools {
    private static final int PATIENCE_S = 5;
    private static final String LAST = "last";

    /** Passes output on to the file of the current run, and drops it between runs: loggers keep the first stream. */
    private static final class Redirected extends OutputStream {
        private OutputStream target = OutputStream.nullOutputStream();

        synchronized void to(OutputStream next) throws IOException {
            target.close();
            target = next;
        }

        @Override
        public synchronized void write(int each) throws IOException {
            target.write(each);
        }

        @Override
        public synchronized void write(byte[] bytes, int offset, int length) throws IOException {
            target.write(bytes, offset, length);
        }

        @Override
        public synchronized void flush() throws IOException {
            target.flush();
        }
    }

    /** Unwinds the thread that called exit. */
    private static final class Ended extends Error {
        Ended() {
            super(null, null, false, false);
        }
    }

    private static final Redirected OUT = new Redirected();
    private static final Redirected ERR = new Redirected();

    /** One run of a tool. */
    private static final class Run {
        private final CountDownLatch ended = new CountDownLatch(1);
        private final List<Runnable> hooks = new ArrayList<>();
        private boolean ending;
        private int status;

        /** Do what a JVM does at its end: only the first call has an effect. */
        void end(int found) {
            List<Thread> last = new ArrayList<>();
            synchronized (this) {
                if (ending) return;
                ending = true;
                status = found;
                for (Runnable hook : hooks) last.add(new Thread(hook, "hook"));
            }
            for (Thread hook : last) hook.start();
            for (Thread hook : last) join(hook);
            System.out.flush();
            System.err.flush();
            try {
                OUT.to(OutputStream.nullOutputStream());
                ERR.to(OutputStream.nullOutputStream());
            } catch (IOException error) {
                status = 1;
            }
            ended.countDown();
        }

        synchronized void add(Runnable hook) {
            hooks.add(hook);
        }
    }

    private static void join(Thread thread) {
        try {
            thread.join();
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    /** Run main; return whether an exception came out of it, which is printed as a JVM does. */
    private static boolean fails(String main, String[] arguments) {
        try {
            Class.forName(main, true, ClassLoader.getSystemClassLoader())
                    .getMethod("main", String[].class)
                    .invoke(null, (Object) arguments);
            return false;
        } catch (InvocationTargetException error) {
            if (error.getCause() instanceof Ended) return false;
            System.err.print("Exception in thread \"main\" ");
            error.getCause().printStackTrace();
        } catch (ReflectiveOperationException error) {
            System.err.println("Error: Could not find or load main class " + main);
            System.err.println("Caused by: " + error);
        }
        return true;
    }

    /** Wait until no thread of a run keeps a JVM alive. */
    private static void awaitOthers(ThreadGroup group) {
        Thread[] threads = new Thread[group.activeCount() + 10];
        int count = group.enumerate(threads);
        for (Thread each : Arrays.copyOf(threads, count))
            if (each != Thread.currentThread() && !each.isDaemon()) join(each);
    }

    /** Return Kafka's class Exit, whose package differs between versions. */
    private static Class<?> kafkasExit() throws ClassNotFoundException {
        try {
            return Class.forName("org.apache.kafka.common.utils.internals.Exit");
        } catch (ClassNotFoundException error) {
            return Class.forName("org.apache.kafka.common.utils.Exit");
        }
    }

    private static void replace(Class<?> exit, String kind, String setter, InvocationHandler by) throws Exception {
        Class<?> type = Class.forName(exit.getName() + "$" + kind);
        exit.getMethod(setter, type).invoke(null, Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, by));
    }

    public static void main(String[] none) throws Exception {
        Class<?> kafkasExit = kafkasExit();
        PrintStream answers = System.out;
        answers.println("ready");
        answers.flush();
        System.setOut(new PrintStream(new BufferedOutputStream(OUT)));
        System.setErr(new PrintStream(new BufferedOutputStream(ERR)));
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            System.out.flush();
            System.err.flush();
        }));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            List<String> parts = new ArrayList<>();
            for (String part : line.split(" "))
                parts.add(new String(Base64.getDecoder().decode(part.substring(1)), StandardCharsets.UTF_8));
            Run run = new Run();
            System.out.flush(); // what the tool before printed after its end
            System.err.flush();
            OUT.to(new FileOutputStream(parts.get(1)));
            ERR.to(new FileOutputStream(parts.get(2)));
            InvocationHandler exit = (proxy, method, its) -> {
                run.end((Integer) its[0]);
                throw new Ended();
            };
            replace(kafkasExit, "Procedure", "setExitProcedure", exit);
            replace(kafkasExit, "Procedure", "setHaltProcedure", exit);
            replace(kafkasExit, "ShutdownHookAdder", "setShutdownHookAdder", (proxy, method, its) -> {
                run.add((Runnable) its[1]);
                return null;
            });
            ThreadGroup group = new ThreadGroup("tool");
            Thread thread = new Thread(group, () -> {
                boolean failed = fails(parts.get(3), parts.subList(4, parts.size()).toArray(new String[0]));
                if (run.ended.getCount() > 0) awaitOthers(group);
                run.end(failed ? 1 : 0);
            }, "main");
            thread.setContextClassLoader(ClassLoader.getSystemClassLoader());
            try (FileInputStream input = new FileInputStream(parts.get(0))) {
                System.setIn(input);
                thread.start();
                run.ended.await();
                thread.join(TimeUnit.SECONDS.toMillis(PATIENCE_S));
            }
            boolean stays = !thread.isAlive();
            answers.println(run.status + (stays ? "" : " " + LAST));
            answers.flush();
            if (!stays) System.exit(0);
        }
    }
}
