//! Hands on the kernel. They obey and return facts; they never decide.
//!
//! The only room where `unsafe` may appear, each block under a SAFETY comment.
//!
//! * [`cgroup`]: control groups: make, bound, empty, remove.
//! * [`conntrack`]: the connection tracking table: list entries, delete one.
//! * [`device_filter`]: the program that says which devices a cgroup may use.
//! * [`detached`]: mounts that are nowhere yet: made aside, attached by somebody else.
//! * [`fd`]: paths walked by file descriptor, so that whoever owns the directory cannot lead us out of it.
//! * [`ipset`]: sets of addresses and ports: make, fill, list, destroy.
//! * [`ipvs`]: virtual servers and the real ones behind them.
//! * [`link`]: network devices and their addresses.
//! * [`tree`]: walking and removing a directory tree that never leaves its mount.
//! * [`memory`]: giving the process's own memory back.
//! * [`message`]: sockets that keep messages apart and carry descriptors.
//! * [`mount`]: bind mounts, tmpfs, hugetlbfs, unmounting.
//! * [`mountinfo`]: what is mounted where.
//! * [`netns`]: work in another network namespace.
//! * [`nfacct`]: counters that iptables rules add to.
//! * [`nft`]: nf_tables: transactions, dumps, and a monitor of what others do to it.
//! * [`notify`]: telling systemd how we are.
//! * [`process`]: what the kernel says of this process, as metrics.
//! * [`route`]: devices, addresses, routes, neighbours and queues, ordered by the batch.
//! * [`sealed`]: files in memory that nobody can change any more.
//! * [`terminal`]: the caller's terminal, raw, and its size.
//! * [`usage`]: how much of a file system a directory takes, counted a piece at a time.

pub mod cgroup;
pub mod conntrack;
pub mod detached;
pub mod device_filter;
pub mod fd;
pub mod ipset;
pub mod ipvs;
pub mod link;
pub mod memory;
pub mod message;
pub mod mount;
pub mod mountinfo;
mod netlink;
pub mod netns;
pub mod nfacct;
pub mod nft;
pub mod notify;
pub mod process;
pub mod processes;
pub mod route;
#[doc(hidden)]
pub mod scratch;
pub mod sealed;
pub mod terminal;
pub mod tree;
pub mod usage;

pub use netlink::Failures;
