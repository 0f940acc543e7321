//! Hands on the kernel. They obey and return facts; they never decide.
//!
//! The only room where `unsafe` may appear, each block under a SAFETY comment.
//!
//! * [`conntrack`]: the connection tracking table: list entries, delete one.
//! * [`fd`]: paths walked by file descriptor, so that whoever owns the directory cannot lead us out of it.
//! * [`tree`]: walking and removing a directory tree that never leaves its mount.
//! * [`memory`]: giving the process's own memory back.
//! * [`mount`]: bind mounts, tmpfs, hugetlbfs, unmounting.
//! * [`mountinfo`]: what is mounted where.
//! * [`nft`]: nf_tables: transactions, dumps, and a monitor of what others do to it.
//! * [`notify`]: telling systemd how we are.

pub mod conntrack;
pub mod fd;
pub mod memory;
pub mod mount;
pub mod mountinfo;
pub mod nft;
pub mod notify;
#[doc(hidden)]
pub mod scratch;
pub mod tree;
