//! One Pod: its intent, the next step, its end, and its status.

mod crash_loop;
mod intent;
pub mod news;
mod plan;
mod plan_types;
pub mod policy;
mod report;
mod status;
pub mod tally;
mod terminate;
mod verdict;

pub use crate::container_spec::ContainerKind;
pub use crash_loop::CrashLoop;
pub use intent::{Intent, Kill, KillCause, Stage};
pub use plan::{deadline, plan};
pub use plan_types::{KillContainer, KillPod, KillReason, NewSandbox, Plan, PlanInput, Start, Stop, Waiting};
pub use report::{Report, Reported, report};
pub use status::{StatusInput, readiness, status};
pub use terminate::{ORPHAN_GRACE, stop_grace, stops};
pub use verdict::{Verdict, Verdicts};
