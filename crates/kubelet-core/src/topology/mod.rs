//! Where on the machine a container runs: its CPUs, the NUMA nodes of its memory, and how these go together.
//!
//! * [`machine`], [`layout`]: what there is. [`wants`]: what a Pod asks for.
//! * [`cpu`], [`memory`]: who has what; each says from which nodes it could give ([`mask`]).
//! * [`policy`]: one answer to all of that. [`admit`]: the three together.

pub mod admission_error;
pub mod admit;
pub mod cpu;
pub mod cpu_set;
pub mod file;
pub mod layout;
pub mod machine;
pub mod mask;
pub mod memory;
pub mod policy;
pub mod wants;
