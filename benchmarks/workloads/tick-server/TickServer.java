import java.io.IOException;
import java.io.PrintWriter;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.SplittableRandom;
import java.util.concurrent.locks.LockSupport;
import jdk.jfr.Event;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;

/**
 * A game server: each battle is a thread that computes so many ticks a second.
 *
 * <p>{@code TickServer HZ SKIP_S SECONDS BATTLES PLAYERS SCHEDULING SWITCHES}
 *
 * <p>A tick reads the players' input, moves and hits them by the rules of the game mode, and writes
 * what each of them sees; the last second of that is kept, as for lag compensation, so that the
 * collector has objects that live for a while. Ticks keep their schedule: one that comes too late
 * begins at once and none is skipped. SKIP_S seconds are the start-up, SECONDS the steady part, in
 * which all battles change their mode SWITCHES times: to a class that was not there before, whose
 * rules the compiled code has left out, so that it is thrown away (deoptimisation).
 *
 * <p>ticks.csv has a line for each tick, in nanoseconds since the first one was due; it is written
 * at the end, so that no tick waits for it. marks.csv has the parts' beginnings by
 * System.nanoTime(), which the JVM's own log has, too. flight.csv is FlightReader's to write.
 */
public final class TickServer {
    private static final long SECOND = 1_000_000_000L;
    private static final long SPIN = 2_000_000L;
    private static final float REACH = 0.1f;

    /** How a battle waits for its next tick. */
    private enum Scheduling {
        SLEEP, PARK, SPIN, HYBRID;

        void waitUntil(long when) throws InterruptedException {
            for (long left = when - System.nanoTime(); left > 0; left = when - System.nanoTime()) {
                switch (this) {
                    case SLEEP:
                        Thread.sleep(left / 1_000_000, (int) (left % 1_000_000));
                        break;
                    case PARK:
                        LockSupport.parkNanos(left);
                        break;
                    case SPIN:
                        Thread.onSpinWait();
                        break;
                    default:
                        if (left > TickServer.SPIN) {
                            LockSupport.parkNanos(left - TickServer.SPIN);
                        } else {
                            Thread.onSpinWait();
                        }
                }
            }
        }
    }

    /** Rules of a game mode. */
    private interface Mode {
        float speed(Player player);

        int damage(Player from, Player at);
    }

    /** Everybody against everybody. */
    private static final class Brawl implements Mode {
        @Override
        public float speed(Player player) {
            return 1;
        }

        @Override
        public int damage(Player from, Player at) {
            return 10;
        }
    }

    /** Two teams, whose players don't hurt their own. */
    private static final class Teams implements Mode {
        @Override
        public float speed(Player player) {
            return player.number % 2 == 0 ? 0.9f : 1.1f;
        }

        @Override
        public int damage(Player from, Player at) {
            return (from.number ^ at.number) % 2 == 0 ? 0 : 12;
        }
    }

    /** Who is hurt is slow, and who is in the middle hits harder. */
    private static final class Hill implements Mode {
        @Override
        public float speed(Player player) {
            return 0.5f + player.health / 200f;
        }

        @Override
        public int damage(Player from, Player at) {
            return Math.hypot(from.x - 0.5, from.y - 0.5) < 0.25 ? 20 : 5;
        }
    }

    private static Mode mode(int number) {
        switch (number) {
            case 0:
                return new Brawl();
            case 1:
                return new Teams();
            default:
                return new Hill();
        }
    }

    /** Marks a moment in the flight recording. */
    @Name("labctl.Mark")
    @StackTrace(false)
    private static final class Mark extends Event {
        String part;

        static void set(String part) {
            Mark mark = new Mark();
            mark.part = part;
            mark.commit();
        }
    }

    private static final class Input {
        final int player;
        final float turn;
        final boolean fires;

        Input(int player, float turn, boolean fires) {
            this.player = player;
            this.turn = turn;
            this.fires = fires;
        }
    }

    private static final class Sight {
        final float x, y, heading;
        final int health;

        Sight(float x, float y, float heading, int health) {
            this.x = x;
            this.y = y;
            this.heading = heading;
            this.health = health;
        }
    }

    private static final class Player {
        final int number;
        float x, y, heading;
        int health = 100;

        Player(int number) {
            this.number = number;
        }
    }

    /** What all battles run for. */
    private static final class Plan {
        final long hz, skip, ticks;
        final int players, switches;
        final Scheduling scheduling;
        volatile long first;

        Plan(String[] words) {
            hz = Long.parseLong(words[0]);
            skip = hz * Long.parseLong(words[1]);
            ticks = skip + hz * Long.parseLong(words[2]);
            players = Integer.parseInt(words[4]);
            scheduling = Scheduling.valueOf(words[5].toUpperCase(Locale.ROOT));
            switches = Integer.parseInt(words[6]);
        }

        long due(long tick) {
            return tick * SECOND / hz;
        }

        /** Returns the mode in which a tick is played: equal shares of the steady part. */
        int modeOf(long tick) {
            return tick < skip ? 0 : (int) ((tick - skip) * (switches + 1) / (ticks - skip));
        }
    }

    private static final class Battle extends Thread {
        final long[] waited, started, read, updated, ended;
        long allocated;
        private final Plan plan;
        private final SplittableRandom random;
        private final Player[] players;
        private final List<ByteBuffer[]> history = new ArrayList<>();
        private int played;
        private Mode mode = mode(0);

        Battle(int number, Plan plan) {
            this.plan = plan;
            random = new SplittableRandom(number);
            int ticks = Math.toIntExact(plan.ticks);
            waited = new long[ticks];
            started = new long[ticks];
            read = new long[ticks];
            updated = new long[ticks];
            ended = new long[ticks];
            this.players = new Player[plan.players];
            for (int i = 0; i < players.length; i++) {
                players[i] = new Player(i);
                spawn(players[i]);
            }
        }

        @Override
        public void run() {
            try {
                for (int tick = 0; tick < ended.length; tick++) {
                    if (tick == plan.skip) {
                        allocated -= allocated();
                    }
                    waited[tick] = now();
                    plan.scheduling.waitUntil(plan.first + plan.due(tick));
                    started[tick] = now();
                    List<Input> inputs = input();
                    read[tick] = now();
                    update(tick, inputs);
                    updated[tick] = now();
                    send(tick, output());
                    ended[tick] = now();
                }
                allocated += allocated();
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }

        private long now() {
            return System.nanoTime() - plan.first;
        }

        private long allocated() {
            return THREADS.getThreadAllocatedBytes(getId());
        }

        private List<Input> input() {
            List<Input> inputs = new ArrayList<>();
            for (int i = 0; i < players.length; i++) {
                float turn = (float) (random.nextDouble() * 0.4 - 0.2);
                inputs.add(new Input(i, turn, random.nextInt(10) == 0));
            }
            return inputs;
        }

        private void update(long tick, List<Input> inputs) {
            if (played != plan.modeOf(tick)) {
                played = plan.modeOf(tick);
                mode = mode(played);
            }
            for (Input input : inputs) {
                Player player = players[input.player];
                player.heading += input.turn;
                float step = mode.speed(player) / plan.hz;
                player.x = wrap(player.x + (float) Math.cos(player.heading) * step);
                player.y = wrap(player.y + (float) Math.sin(player.heading) * step);
            }
            for (Input input : inputs) {
                if (input.fires) {
                    fire(players[input.player]);
                }
            }
        }

        private void fire(Player from) {
            for (Player at : players) {
                if (at != from && Math.hypot(at.x - from.x, at.y - from.y) < REACH) {
                    at.health -= mode.damage(from, at);
                    if (at.health <= 0) {
                        spawn(at);
                    }
                }
            }
        }

        /** Returns a message for each player, with everybody's place. */
        private ByteBuffer[] output() {
            ByteBuffer[] messages = new ByteBuffer[players.length];
            for (int i = 0; i < messages.length; i++) {
                messages[i] = ByteBuffer.allocate(16 * players.length);
                for (Sight seen : seenBy(players[i])) {
                    messages[i].putFloat(seen.x).putFloat(seen.y);
                    messages[i].putFloat(seen.heading).putInt(seen.health);
                }
            }
            return messages;
        }

        private List<Sight> seenBy(Player player) {
            List<Sight> sights = new ArrayList<>();
            for (Player seen : players) {
                float x = seen.x - player.x, y = seen.y - player.y;
                sights.add(new Sight(x, y, seen.heading, seen.health));
            }
            return sights;
        }

        private void send(int tick, ByteBuffer[] messages) {
            if (history.size() < plan.hz) {
                history.add(messages);
            } else {
                history.set((int) (tick % plan.hz), messages);
            }
        }

        private void spawn(Player player) {
            player.x = (float) random.nextDouble();
            player.y = (float) random.nextDouble();
            player.health = 100;
        }
    }

    private static final com.sun.management.ThreadMXBean THREADS =
            (com.sun.management.ThreadMXBean) ManagementFactory.getThreadMXBean();

    private static float wrap(float place) {
        return place - (float) Math.floor(place);
    }

    private static long collections() {
        long collections = 0;
        for (GarbageCollectorMXBean bean : ManagementFactory.getGarbageCollectorMXBeans()) {
            collections += bean.getCollectionCount();
        }
        return collections;
    }

    private static void writeTicks(Plan plan, Battle[] battles) throws IOException {
        try (PrintWriter file = new PrintWriter("ticks.csv")) {
            file.println("battle,scheduled_ns,waited_ns,start_ns,input_ns,logic_ns,end_ns,"
                    + "deadline_ns");
            for (int i = 0; i < battles.length; i++) {
                Battle battle = battles[i];
                for (int tick = 0; tick < plan.ticks; tick++) {
                    file.println(i + "," + plan.due(tick) + "," + battle.waited[tick] + ","
                            + battle.started[tick] + "," + battle.read[tick] + ","
                            + battle.updated[tick] + "," + battle.ended[tick] + ","
                            + plan.due(tick + 1));
                }
            }
            if (file.checkError()) {
                throw new IOException("cannot write ticks.csv");
            }
        }
    }

    private static void writeMarks(long launched, long begun, Plan plan) throws IOException {
        try (PrintWriter file = new PrintWriter("marks.csv")) {
            file.println("mark,ns");
            file.println("launched," + launched);
            file.println("begun," + begun);
            file.println("steady," + (plan.first + plan.due(plan.skip)));
            file.println("over," + (plan.first + plan.due(plan.ticks)));
            if (file.checkError()) {
                throw new IOException("cannot write marks.csv");
            }
        }
    }

    /** Says that nothing is known of the compiler's work: FlightReader says what is. */
    private static void writeNothingRecorded() throws IOException {
        try (PrintWriter file = new PrintWriter("flight.csv")) {
            file.println("part,what,value");
            for (String part : new String[] {"startup", "steady"}) {
                for (String what : new String[] {"compiling_ns", "longest_ns", "deoptimisations"}) {
                    file.println(part + "," + what + ",nan");
                }
            }
            if (file.checkError()) {
                throw new IOException("cannot write flight.csv");
            }
        }
    }

    public static void main(String[] words) throws InterruptedException, IOException {
        long up = ManagementFactory.getRuntimeMXBean().getUptime();
        long launched = System.nanoTime() - up * 1_000_000;
        Plan plan = new Plan(words);
        Battle[] battles = new Battle[Integer.parseInt(words[3])];
        for (int i = 0; i < battles.length; i++) {
            battles[i] = new Battle(i, plan);
        }
        Mark.set("begun");
        plan.first = System.nanoTime();
        for (Battle battle : battles) {
            battle.start();
        }
        Scheduling.PARK.waitUntil(plan.first + plan.due(plan.skip));
        long before = collections();
        Mark.set("steady");
        Scheduling.PARK.waitUntil(plan.first + plan.due(plan.ticks));
        Mark.set("over");
        long after = collections();
        long allocated = 0;
        long begun = Long.MAX_VALUE;
        for (Battle battle : battles) {
            battle.join();
            allocated += battle.allocated;
            begun = Math.min(begun, plan.first + battle.started[0]);
        }
        writeTicks(plan, battles);
        writeMarks(launched, begun, plan);
        writeNothingRecorded();
        double seconds = (double) (plan.ticks - plan.skip) / plan.hz;
        System.out.println("started in: " + (begun - launched) / 1_000 + " us");
        System.out.println("collections: " + (after - before));
        System.out.printf(Locale.ROOT, "allocated: %.0f B/s%n", allocated / seconds);
    }
}
