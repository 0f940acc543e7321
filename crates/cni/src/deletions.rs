//! Deletions of devices. The kernel waits a while after each, and not much longer after many that it is told of at once: those
//! that come while one is being done are done together.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use cni_core::CniError;
use rustix::io::Errno;
use sys::netns::Netns;
use sys::route::{LinkChange, Order, Routing};

/// Devices of this group are about to go; no other device is ever in it.
const GOING: u32 = 0x4c53_6369;

static QUEUE: Mutex<Queue> =
    Mutex::new(Queue { next: 0, is_busy: false, waiting: Vec::new(), outcomes: BTreeMap::new() });
static CHANGED: Condvar = Condvar::new();

struct Queue {
    next: u64,
    is_busy: bool,
    /// One for each caller that waits, no more.
    waiting: Vec<Waiting>,
    outcomes: BTreeMap<u64, Result<(), CniError>>,
}

struct Waiting {
    ticket: u64,
    namespace: (u64, u64),
    device: u32,
}

/// Whoever is first does it for all, and lets the next one whatever happens.
struct Turn;

// === impl Turn ===

impl Drop for Turn {
    fn drop(&mut self) {
        lock().is_busy = false;
        CHANGED.notify_all();
    }
}

/// Returns when the device is gone. One that is gone already will do.
pub(crate) fn delete(routing: &mut Routing, device: u32) -> Result<(), CniError> {
    let namespace = Netns::current().and_then(|namespace| namespace.id());
    let namespace = namespace.map_err(|e| CniError::io("looking at our network namespace", &e))?;
    let mut queue = lock();
    let ticket = queue.next;
    queue.next += 1;
    queue.waiting.push(Waiting { ticket, namespace, device });
    loop {
        if let Some(outcome) = queue.outcomes.remove(&ticket) {
            return outcome;
        }
        if queue.is_busy {
            queue = CHANGED.wait(queue).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        queue.is_busy = true;
        let (ours, others) =
            std::mem::take(&mut queue.waiting).into_iter().partition(|w| w.namespace == namespace);
        queue.waiting = others;
        drop(queue);
        let turn = Turn;
        let outcome = together(routing, &ours);
        queue = lock();
        queue.outcomes.extend(ours.iter().map(|waiting| (waiting.ticket, outcome.clone())));
        drop(queue);
        drop(turn);
        queue = lock();
    }
}

fn lock() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn together(routing: &mut Routing, all: &[Waiting]) -> Result<(), CniError> {
    if let [one] = all {
        return routing.commit(&[Order::DeleteLink(one.device)], &[Errno::NODEV]).map_err(failed);
    }
    let leave = |waiting: &Waiting| {
        Order::ChangeLink(waiting.device, LinkChange { group: Some(GOING), ..LinkChange::default() })
    };
    let mut orders: Vec<Order<'_>> = all.iter().map(leave).collect();
    orders.push(Order::DeleteGroup(GOING));
    routing.commit(&orders, &[Errno::NODEV]).map_err(failed)
}

fn failed(error: sys::route::Error) -> CniError {
    CniError::kernel("deleting a device", &error)
}
