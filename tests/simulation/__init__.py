"""A whole cluster in one process on virtual time: brokers, network, disks and ZooKeeper from one seed.

    python -m tests.simulation --seed 7                    one world, as the tests run it
    python -m tests.simulation --steps 1000000 --seed 7    worlds 7, 8, 9, ... until so many steps are done
    python -m tests.simulation --seed 7 --trace FILE       writes what each step did, to compare two runs

Real: every broker, as `ClusterNode.start` puts it together: its server and connections, dispatcher and handlers, the
controller, the replica manager and its fetchers, the coordinators, the logs and their files; the clients' way to them
(peers/connection.py); what stands in the tree of znodes (controller/tree/memory.py).

Simulated: time, which jumps to the next timer once nothing is left to do (loop.py); TCP, between brokers and for
clients (network.py); the way to ZooKeeper, and how long it waits for a session of which it does not hear (store.py);
threads, whose work is done in steps of the loop, fsync, which does nothing, and the disk's room (machine.py);
processes, which are killed or frozen by not running what was scheduled in them (brokers.py).

A step is one callback of the loop. After each, what a broker has become is compared with what replication promises
(invariants.py), and with each write what the controllers make of the partitions (states.py); what clients were told is
judged as they hear it, and once more at the end (readers.py, groups.py).
"""
