import java.io.IOException;
import java.io.PrintWriter;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.concurrent.locks.LockSupport;

/**
 * A game server: each battle is a thread that computes so many ticks a second.
 *
 * <p>{@code TickServer HZ SECONDS BATTLES PLAYERS SCHEDULING FILE}
 *
 * <p>A tick reads the players' input, moves and hits them, and writes what each of them sees; the
 * last second of that is kept, as for lag compensation, so that the collector has objects that live
 * for a while. Ticks keep their schedule: one that comes too late begins at once and none is
 * skipped. FILE has a line for each tick, in nanoseconds since the first one was due; it is written
 * at the end, so that no tick waits for it.
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
                    case SLEEP -> Thread.sleep(left / 1_000_000, (int) (left % 1_000_000));
                    case PARK -> LockSupport.parkNanos(left);
                    case SPIN -> Thread.onSpinWait();
                    case HYBRID -> {
                        if (left > TickServer.SPIN) {
                            LockSupport.parkNanos(left - TickServer.SPIN);
                        } else {
                            Thread.onSpinWait();
                        }
                    }
                }
            }
        }
    }

    private record Input(int player, float turn, boolean fires) {}

    private record Sight(float x, float y, float heading, int health) {}

    private static final class Player {
        float x, y, heading;
        int health = 100;
    }

    private static final class Battle extends Thread {
        final long[] started, ended;
        private final long hz, first;
        private final Scheduling scheduling;
        private final SplittableRandom random;
        private final Player[] players;
        private final List<ByteBuffer[]> history = new ArrayList<>();

        Battle(int number, int ticks, long hz, int players, Scheduling scheduling, long first) {
            this.hz = hz;
            this.first = first;
            this.scheduling = scheduling;
            random = new SplittableRandom(number);
            started = new long[ticks];
            ended = new long[ticks];
            this.players = new Player[players];
            for (int i = 0; i < players; i++) {
                this.players[i] = new Player();
                spawn(this.players[i]);
            }
        }

        @Override
        public void run() {
            try {
                for (int tick = 0; tick < started.length; tick++) {
                    scheduling.waitUntil(first + due(tick, hz));
                    started[tick] = System.nanoTime() - first;
                    update(input());
                    send(tick, output());
                    ended[tick] = System.nanoTime() - first;
                }
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }

        private List<Input> input() {
            List<Input> inputs = new ArrayList<>();
            for (int i = 0; i < players.length; i++) {
                float turn = (float) random.nextDouble(-0.2, 0.2);
                inputs.add(new Input(i, turn, random.nextInt(10) == 0));
            }
            return inputs;
        }

        private void update(List<Input> inputs) {
            for (Input input : inputs) {
                Player player = players[input.player()];
                player.heading += input.turn();
                player.x = wrap(player.x + (float) Math.cos(player.heading) / hz);
                player.y = wrap(player.y + (float) Math.sin(player.heading) / hz);
            }
            for (Input input : inputs) {
                if (input.fires()) {
                    fire(players[input.player()]);
                }
            }
        }

        private void fire(Player from) {
            for (Player at : players) {
                if (at != from && Math.hypot(at.x - from.x, at.y - from.y) < REACH) {
                    at.health -= 10;
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
                    messages[i].putFloat(seen.x()).putFloat(seen.y());
                    messages[i].putFloat(seen.heading()).putInt(seen.health());
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
            if (history.size() < hz) {
                history.add(messages);
            } else {
                history.set((int) (tick % hz), messages);
            }
        }

        private void spawn(Player player) {
            player.x = (float) random.nextDouble();
            player.y = (float) random.nextDouble();
            player.health = 100;
        }
    }

    private static float wrap(float place) {
        return place - (float) Math.floor(place);
    }

    private static long due(long tick, long hz) {
        return tick * SECOND / hz;
    }

    public static void main(String[] words) throws InterruptedException, IOException {
        long hz = Long.parseLong(words[0]);
        int ticks = Math.toIntExact(hz * Long.parseLong(words[1]));
        int players = Integer.parseInt(words[3]);
        Scheduling scheduling = Scheduling.valueOf(words[4].toUpperCase());
        long first = System.nanoTime() + SECOND / 10;
        Battle[] battles = new Battle[Integer.parseInt(words[2])];
        for (int i = 0; i < battles.length; i++) {
            battles[i] = new Battle(i, ticks, hz, players, scheduling, first);
        }
        for (Battle battle : battles) {
            battle.start();
        }
        for (Battle battle : battles) {
            battle.join();
        }
        try (PrintWriter file = new PrintWriter(words[5])) {
            file.println("battle,scheduled_ns,start_ns,end_ns,deadline_ns");
            for (int i = 0; i < battles.length; i++) {
                for (int tick = 0; tick < ticks; tick++) {
                    file.println(i + "," + due(tick, hz) + "," + battles[i].started[tick] + ","
                            + battles[i].ended[tick] + "," + due(tick + 1, hz));
                }
            }
            if (file.checkError()) {
                throw new IOException("cannot write " + words[5]);
            }
        }
        long collections = 0;
        for (GarbageCollectorMXBean bean : ManagementFactory.getGarbageCollectorMXBeans()) {
            collections += bean.getCollectionCount();
        }
        System.out.println("collections: " + collections);
    }
}
