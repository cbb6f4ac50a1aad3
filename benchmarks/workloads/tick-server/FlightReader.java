import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.Map;
import jdk.jfr.EventType;
import jdk.jfr.consumer.RecordedEvent;
import jdk.jfr.consumer.RecordingFile;

/**
 * Counts the JIT compiler's work in a flight recording, before and in the steady part.
 *
 * <p>{@code FlightReader RECORDING TABLE}
 *
 * <p>The table has a line for each part and number. What the runtime doesn't record is "nan": Java
 * 11 has no jdk.Deoptimization.
 */
public final class FlightReader {
    private static final String COMPILED = "jdk.Compilation", THROWN_AWAY = "jdk.Deoptimization";

    private static final class Part {
        final Instant from, until;
        long deoptimisations;
        Duration compiling = Duration.ZERO, longest = Duration.ZERO;

        Part(Instant from, Instant until) {
            this.from = from;
            this.until = until;
        }

        boolean has(RecordedEvent event) {
            return !event.getEndTime().isBefore(from) && event.getEndTime().isBefore(until);
        }

        void count(RecordedEvent event) {
            if (event.getEventType().getName().equals(THROWN_AWAY)) {
                deoptimisations++;
                return;
            }
            compiling = compiling.plus(event.getDuration());
            if (event.getDuration().compareTo(longest) > 0) {
                longest = event.getDuration();
            }
        }
    }

    public static void main(String[] words) throws IOException {
        Path recording = Path.of(words[0]);
        Map<String, Instant> marks = new HashMap<>();
        boolean hasDeoptimisations = false;
        try (RecordingFile file = new RecordingFile(recording)) {
            for (EventType type : file.readEventTypes()) {
                hasDeoptimisations |= type.getName().equals(THROWN_AWAY);
            }
            while (file.hasMoreEvents()) {
                RecordedEvent event = file.readEvent();
                if (event.getEventType().getName().equals("labctl.Mark")) {
                    marks.put(event.getString("part"), event.getStartTime());
                }
            }
        }
        for (String mark : new String[] {"begun", "steady", "over"}) {
            if (!marks.containsKey(mark)) {
                throw new IOException(recording + " has no mark '" + mark + "'");
            }
        }
        Part startup = new Part(Instant.MIN, marks.get("steady"));
        Part steady = new Part(marks.get("steady"), marks.get("over"));
        try (RecordingFile file = new RecordingFile(recording)) {
            while (file.hasMoreEvents()) {
                RecordedEvent event = file.readEvent();
                String name = event.getEventType().getName();
                for (Part part : new Part[] {startup, steady}) {
                    if ((name.equals(COMPILED) || name.equals(THROWN_AWAY)) && part.has(event)) {
                        part.count(event);
                    }
                }
            }
        }
        try (PrintWriter table = new PrintWriter(words[1])) {
            table.println("part,what,value");
            write(table, "startup", startup, hasDeoptimisations);
            write(table, "steady", steady, hasDeoptimisations);
            if (table.checkError()) {
                throw new IOException("cannot write " + words[1]);
            }
        }
    }

    private static void write(PrintWriter table, String name, Part part, boolean deoptimises) {
        table.println(name + ",compiling_ns," + part.compiling.toNanos());
        table.println(name + ",longest_ns," + part.longest.toNanos());
        table.println(name + ",deoptimisations," + (deoptimises ? part.deoptimisations : "nan"));
    }
}
