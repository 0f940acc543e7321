//! What the daemon and a keeper agree on, in numbers. The keeper's program includes this very file, so it knows nothing
//! but `core`. All integers are little-endian. A daemon may meet keepers that an older one started: a number is never
//! used again for something else.
#![allow(dead_code, unreachable_pub)]

/// Of the messages and of recipes. A keeper refuses recipes of another one.
pub const VERSION: u32 = 1;
/// "LREC".
pub const MAGIC: u32 = 0x4345_524c;

/// A message: kind, number of the request it belongs to, job, one argument; then a payload of at most [`PAYLOAD_MAX`].
pub const HEAD: usize = 16;
pub const PAYLOAD_MAX: usize = 512;
/// Descriptors that one message carries (the kernel's own limit is 253).
pub const FDS_MAX: usize = 128;
/// Processes that one keeper looks after at once.
pub const JOBS_MAX: usize = 256;
/// A recipe with its arguments and environment.
pub const RECIPE_MAX: usize = 4 << 20;
/// A slot that is not used.
pub const NONE: u32 = u32::MAX;

/// Of messages, from the daemon.
pub const LAUNCH: u32 = 1;
pub const RELEASE: u32 = 2;
pub const ACK: u32 = 3;
pub const SIGNAL: u32 = 4;
pub const LIST: u32 = 5;
pub const LOG: u32 = 6;
pub const TEE: u32 = 7;
pub const INPUT: u32 = 8;
pub const CLOSE_INPUT: u32 = 9;
pub const QUIT: u32 = 10;
/// The argument is 0 for output, 1 for errors: answered with the end that is read, which the keeper goes on reading.
pub const STREAM: u32 = 11;
/// Look after a process that a keeper before this one made. The argument says by a bit each which descriptors come along:
/// pidfd, output, errors, input, log, memory events; the payload is its process id (u32).
pub const ADOPT: u32 = 12;

/// Of messages, from the keeper.
pub const DONE: u32 = 64;
/// The argument is an errno.
pub const REFUSED: u32 = 65;
/// The process was made: argument its id, descriptor its pidfd.
pub const LAUNCHED: u32 = 66;
/// The process waits at [`OP_HOLD`] for RELEASE: the argument is the op's. It may bring a descriptor.
pub const HELD: u32 = 67;
/// The program runs.
pub const STARTED: u32 = 68;
/// The argument is the errno, the payload the number of the op (u32).
pub const FAILED: u32 = 69;
/// The argument is the wait status as a shell tells it (128 + signal); the payload is 24 bytes:
/// seconds, nanoseconds of the wall clock (u64 each), processes killed for memory (u64).
pub const EXITED: u32 = 70;
/// One job, as an answer to LIST: argument its process id, payload its state (u32), descriptor its pidfd.
pub const JOB: u32 = 71;
/// The terminal of a job that was started with one and without a log: the descriptor is its master.
pub const TERMINAL: u32 = 72;

/// Places of an adopted process's descriptors.
pub const ADOPT_PIDFD: usize = 0;
pub const ADOPT_STDOUT: usize = 1;
pub const ADOPT_STDERR: usize = 2;
pub const ADOPT_INPUT: usize = 3;
pub const ADOPT_LOG: usize = 4;
pub const ADOPT_MEMORY: usize = 5;
pub const ADOPT_FDS: usize = 6;

/// States of a job.
pub const STATE_SETUP: u32 = 0;
pub const STATE_RUNNING: u32 = 1;
pub const STATE_EXITED: u32 = 2;

/// A recipe: this head, then ops.
///
/// | at | | |
/// |---|---|---|
/// | 0 | u32 | MAGIC |
/// | 4 | u32 | VERSION |
/// | 8 | u32 | length of all |
/// | 12 | u32 | flags |
/// | 16 | u64 | flags of clone |
/// | 24.. | u32 each | the slots below |
pub const RECIPE_HEAD: usize = 64;
pub const AT_FLAGS: usize = 12;
pub const AT_CLONE: usize = 16;
pub const AT_LOG: usize = 24;
pub const AT_MEMORY_EVENTS: usize = 28;
pub const AT_PID_NAMESPACE: usize = 32;
pub const AT_CGROUP: usize = 40;
pub const AT_STDIN: usize = 44;
pub const AT_STDOUT: usize = 48;
pub const AT_STDERR: usize = 52;
/// With [`FLAG_USER`]: the user namespace, and who is its root outside of it.
pub const AT_USER_NAMESPACE: usize = 56;
pub const AT_USER_ROOT: usize = 60;

/// The keeper makes pipes for output and writes the log.
pub const FLAG_LOG: u32 = 1;
/// The keeper makes a pipe for input and keeps its end.
pub const FLAG_INPUT: u32 = 2;
/// A terminal instead of pipes; the recipe has an [`OP_TERMINAL`].
pub const FLAG_TERMINAL: u32 = 4;
/// Born in a user namespace, which all other namespaces that are made with it belong to.
pub const FLAG_USER: u32 = 8;

/// An op: code (u32), length of the payload (u32), argument (u64), payload padded to 8.
pub const OP_HEAD: usize = 16;

/// Enter the namespaces `argument >> 32` (flags of clone) of slot `argument as u32`: a namespace or a pidfd.
pub const OP_SETNS: u32 = 1;
/// Write 0 into the slot: join a cgroup.
pub const OP_JOIN_CGROUP: u32 = 2;
/// The mount in the slot is the root to be.
pub const OP_ROOT: u32 = 3;
/// The root is where we are: after entering somebody's mount namespace.
pub const OP_ROOT_HERE: u32 = 4;
/// Attach the mount in the slot at the path in the payload. `argument >> 32`: TARGET_DIR, TARGET_FILE.
pub const OP_ATTACH: u32 = 5;
/// A new file system: argument is the attributes of the mount; payload: type, target, then keys and values, each ended by NUL.
pub const OP_FSMOUNT: u32 = 6;
pub const OP_MASK: u32 = 7;
pub const OP_READONLY: u32 = 8;
/// The root itself becomes read-only.
pub const OP_ROOT_READONLY: u32 = 9;
pub const OP_PIVOT: u32 = 10;
pub const OP_HOSTNAME: u32 = 11;
/// Payload: path below /proc, NUL, value.
pub const OP_SYSCTL: u32 = 12;
pub const OP_HOLD: u32 = 13;
/// Make the directory in the payload if it is missing.
pub const OP_MKDIR: u32 = 14;
pub const OP_CHDIR: u32 = 15;
/// Argument: user | group << 32; payload: u32 each, the other groups.
pub const OP_USER: u32 = 16;
/// Payload: bounding set (u64).
pub const OP_BOUNDING: u32 = 17;
/// Payload: effective, permitted, inheritable, ambient (u64 each).
pub const OP_CAPABILITIES: u32 = 18;
pub const OP_NO_NEW_PRIVILEGES: u32 = 19;
/// Payload: the program, 8 bytes an instruction.
pub const OP_SECCOMP: u32 = 20;
/// Argument: resource; payload: soft, hard (u64 each).
pub const OP_RLIMIT: u32 = 21;
pub const OP_UMASK: u32 = 22;
/// Argument: the value as i64. Where lowering is not allowed, it stays as it was.
pub const OP_OOM_SCORE: u32 = 23;
/// Argument: columns | rows << 16.
pub const OP_TERMINAL: u32 = 24;
/// Payload: number of candidates, of arguments, of variables (u32 each), then all of them, each ended by NUL.
pub const OP_EXEC: u32 = 25;
/// Be the first process of a Pod: reap, for ever.
pub const OP_REAP: u32 = 26;
/// Connect to the port on loopback; the socket is what HELD brings.
pub const OP_DIAL: u32 = 27;
pub const OP_EXIT: u32 = 28;
pub const OP_LOOPBACK: u32 = 29;
/// Attach the mount in the slot where the old root goes with it. A user namespace may mount a file system of the kernel only
/// where one of its kind is seen whole.
pub const OP_VISIBLE: u32 = 30;

pub const TARGET_DIR: u32 = 0;
pub const TARGET_FILE: u32 = 1;

/// From the child to the keeper, over the pair of sockets between them: kind, a, b (u32 each).
pub const CHILD_FAILED: u32 = 1;
pub const CHILD_HELD: u32 = 2;
pub const CHILD_TERMINAL: u32 = 3;

/// How many of a job's output readers may be attached at once.
pub const TEES_MAX: usize = 4;
