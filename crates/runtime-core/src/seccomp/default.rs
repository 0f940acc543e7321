//! The profile of containers that ask for the runtime's default: everything that programs commonly do, nothing that changes
//! the machine. The calls are those of the documented default policy of Docker and containerd.

use std::collections::BTreeSet;

use super::{Action, Arch, Compare, Profile, Rule, Test};
use crate::capabilities::bit;

/// Always allowed. Names that an architecture does not have are passed over.
const COMMON: &str = "
    accept accept4 access adjtimex alarm bind brk cachestat capget capset chdir chmod chown chown32 clock_adjtime
    clock_adjtime64 clock_getres clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep clock_nanosleep_time64
    close close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_ctl_old
    epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2
    fadvise64 fadvise64_64 fallocate fanotify_mark fchdir fchmod fchmodat fchmodat2 fchown fchown32 fchownat fcntl fcntl64
    fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstat64 fstatat64 fstatfs fstatfs64 fsync ftruncate
    ftruncate64 futex futex_requeue futex_time64 futex_wait futex_waitv futex_wake futimesat get_mempolicy get_robust_list
    get_thread_area getcpu getcwd getdents getdents64 getegid getegid32 geteuid geteuid32 getgid getgid32 getgroups getgroups32
    getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresgid32 getresuid getresuid32
    getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid getuid32 getxattr getxattrat
    inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents
    io_pgetevents_time64 io_setup io_submit ioctl ioprio_get ioprio_set ipc kill landlock_add_rule landlock_create_ruleset
    landlock_restrict_self lchown lchown32 lgetxattr link linkat listen listxattr listxattrat llistxattr lremovexattr
    lseek lsetxattr lstat lstat64 madvise map_shadow_stack membarrier memfd_create memfd_secret mincore mkdir mkdirat mknod
    mknodat mlock mlock2 mlockall mmap mmap2 mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64
    mq_timedsend mq_timedsend_time64 mq_unlink mremap mseal msgctl msgget msgrcv msgsnd msync munlock munlockall munmap
    name_to_handle_at nanosleep newfstatat _newselect open openat openat2 pause pidfd_open pidfd_send_signal pipe
    pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll ppoll_time64 prctl pread64 preadv preadv2 prlimit64 process_mrelease
    process_vm_readv process_vm_writev pselect6 pselect6_time64 ptrace pwrite64 pwritev pwritev2 read readahead readlink
    readlinkat readv recv recvfrom recvmmsg recvmmsg_time64 recvmsg remap_file_pages removexattr removexattrat rename renameat
    renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend
    rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity
    sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval sched_rr_get_interval_time64 sched_setaffinity
    sched_setattr sched_setparam sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop semtimedop_time64
    send sendfile sendfile64 sendmmsg sendmsg sendto set_mempolicy set_robust_list set_thread_area set_tid_address setfsgid
    setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups setgroups32 setitimer setpgid setpriority setregid setregid32
    setresgid setresgid32 setresuid setresuid32 setreuid setreuid32 setrlimit setsid setsockopt setuid setuid32 setxattr
    setxattrat shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 sigprocmask sigreturn socketcall socketpair
    splice stat stat64 statfs statfs64 statx symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill time
    timer_create timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64 timerfd_create
    timerfd_gettime timerfd_gettime64 timerfd_settime timerfd_settime64 times tkill truncate truncate64 ugetrlimit umask uname
    unlink unlinkat uretprobe utime utimensat utimensat_time64 utimes vfork vmsplice wait4 waitid waitpid write writev
    arch_prctl modify_ldt sync_file_range2 breakpoint cacheflush set_tls";

/// What a capability is for is allowed to who has it.
const BY_CAPABILITY: &[(&str, &str)] = &[
    ("DAC_READ_SEARCH", "open_by_handle_at"),
    (
        "SYS_ADMIN",
        "bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick listmount lookup_dcookie lsm_get_self_attr lsm_list_modules \
         lsm_set_self_attr mount mount_setattr move_mount open_tree perf_event_open quotactl quotactl_fd setdomainname \
         sethostname setns statmount syslog umount umount2 unshare",
    ),
    ("SYS_BOOT", "reboot"),
    ("SYS_CHROOT", "chroot"),
    ("SYS_MODULE", "delete_module finit_module init_module"),
    ("SYS_PACCT", "acct"),
    ("SYS_PTRACE", "kcmp pidfd_getfd process_madvise process_vm_readv process_vm_writev ptrace"),
    ("SYS_RAWIO", "iopl ioperm"),
    ("SYS_TIME", "clock_settime clock_settime64 settimeofday stime"),
    ("SYS_TTY_CONFIG", "vhangup"),
    ("SYS_NICE", "get_mempolicy mbind set_mempolicy set_mempolicy_home_node"),
    ("SYSLOG", "syslog"),
    ("BPF", "bpf"),
    ("PERFMON", "perf_event_open"),
];

/// Every `CLONE_NEW…` but that of time, which is a signal's number to clone: a container makes no namespaces.
const NAMESPACES: u64 = 0x7e02_0000;
const VSOCK: u64 = 40;
const ENOSYS: u16 = 38;
const EPERM: u16 = 1;
/// What `personality` may ask for: nothing, old address layout, the names of 32 bits, and what there is.
const PERSONALITIES: [u64; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// For a container with these capabilities in its bounding set.
#[must_use]
pub fn default_profile(native: Arch, bounding: u64) -> Profile {
    let has = |name: &str| bit(name).is_ok_and(|bit| bounding & bit != 0);
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let allow = |names: Vec<String>| Rule { names, action: Action::Allow, tests: vec![] };
    let mut rules = vec![allow(words(COMMON))];
    rules.extend(BY_CAPABILITY.iter().filter(|(name, _)| has(name)).map(|(_, calls)| allow(words(calls))));
    let tested = |name: &str, compare, value| Rule {
        names: vec![name.to_owned()],
        action: Action::Allow,
        tests: vec![Test { argument: 0, compare, value }],
    };
    rules.push(tested("socket", Compare::NotEqual, VSOCK));
    rules.extend(PERSONALITIES.map(|value| tested("personality", Compare::Equal, value)));
    if !has("SYS_ADMIN") {
        rules.push(tested("clone", Compare::Masked(NAMESPACES), 0));
        // Its flags are behind a pointer. Who hears that it does not exist asks clone.
        let action = Action::Errno(ENOSYS);
        rules.push(Rule { names: vec!["clone3".into()], action, tests: vec![] });
    }
    let mut architectures = BTreeSet::from([native]);
    if native == Arch::X86_64 {
        architectures.insert(Arch::I386);
    }
    Profile { default: Action::Errno(EPERM), rules, architectures, flags: 0 }
}
