//! nftables: one table per family, one transaction per change.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use nft::{Question, TableId};
use proxy_core::nft::{Content, Digest, Renderer, compare, replace};
use proxy_core::objects::Family;
use proxy_core::rules::{Delta, Mode, NodeRules, RuleSet};
use sys::nft::{Monitor, Nftables, Sighting};
use tokio::sync::mpsc;

use crate::ports::{Dataplane, Error};
use crate::yield_flag::{Outcome, YieldFlag};

/// Somebody may change the table while we put it right; then we look again.
const TRIES: usize = 5;

/// So often in a row a table that cannot be read for all that others do to theirs is taken to be right. Then it is written
/// anew.
const MOST_UNREAD: u32 = 5;

/// How long it takes at most to notice that nobody listens to the listener.
const LISTEN_MILLISECONDS: u32 = 500;

#[derive(Debug)]
pub struct NftDataplane {
    nft: Nftables,
    family: Family,
    table: TableId,
    renderer: Renderer,
    times_unread: u32,
    last_to_touch: LastToTouch,
}

/// Who changed the table last, other than us. Written by the thread that listens.
type LastToTouch = Arc<Mutex<Option<String>>>;

// === impl NftDataplane ===

impl NftDataplane {
    /// In the network namespace that the calling thread is in.
    pub fn open(family: Family, masquerade_bit: u8) -> Result<Self, Error> {
        Ok(Self {
            nft: Nftables::open()?,
            family,
            table: proxy_core::nft::table(family),
            renderer: Renderer::new(family, masquerade_bit),
            times_unread: 0,
            last_to_touch: LastToTouch::default(),
        })
    }

    /// What the kernel holds, in the network namespace that the calling thread is in.
    pub fn read(&mut self) -> Result<Content, Error> {
        let mut content = read_frame(&mut self.nft, &self.table)?;
        for set in content.own_sets() {
            let of_set = |c: &mut Content| {
                c.sets.iter_mut().filter(|(s, _)| s.name == set).for_each(|(_, e)| e.clear())
            };
            self.nft.ask(&self.table, &Question::Elements(&set), &mut content, of_set, |c, notice| {
                c.hear(notice);
                true
            })?;
        }
        Ok(content.sorted())
    }

    /// Whether the kernel takes a table as we write it. It is made and deleted at once, so that nobody sees it.
    pub fn try_out(&mut self) -> Result<(), Error> {
        let trial = TableId { family: self.table.family, name: "kube-proxy-trial".into() };
        let rules = RuleSet::empty(self.family, NodeRules::unknown(Mode::Nftables));
        let whole = Renderer::new(self.family, 0).whole(&rules);
        let steps = compare(&Content::default(), whole).steps.into_iter().flatten();
        let messages: Vec<nft::Message> = steps.chain([nft::Message::DeleteTable]).collect();
        Ok(self.nft.commit(&trial, &messages)?)
    }

    /// Deletes the table, with everything in it. One that is not there is made first, which nobody sees.
    pub fn remove(&mut self) -> Result<(), Error> {
        Ok(self.nft.commit(&self.table, &[nft::Message::AddTable, nft::Message::DeleteTable])?)
    }

    /// Whether the kernel has what it should have, as far as we have told it anything. Reading goes on aside, so that it can
    /// be left at any time.
    fn is_right(&mut self, rules: &RuleSet, flag: &YieldFlag) -> Result<Outcome<bool>, Error> {
        let Some(should) = self.renderer.digest(rules, || !flag.is_raised()) else {
            return Ok(if flag.is_raised() { Outcome::Left } else { Outcome::Done(false) });
        };
        let (table, flag_of_job) = (self.table.clone(), flag.clone());
        match flag.unless_raised(move || read_digest(&table, &flag_of_job)).map_err(Error::Thread)? {
            Outcome::Done(Ok(is)) => Ok(Outcome::Done(is == should)),
            Outcome::Done(Err(Error::Nftables(sys::nft::Error::Left { .. }))) | Outcome::Left => {
                Ok(Outcome::Left)
            }
            Outcome::Done(Err(Error::Nftables(error @ sys::nft::Error::Disturbed { .. }))) => {
                Err(Error::Unread(error))
            }
            Outcome::Done(Err(error)) => Err(error),
        }
    }

    /// Makes the kernel have it. What was written is freed here and not aside, though the first time it is as large as all
    /// rules: who frees much keeps everybody else from the heap, and the next change would have to wait for it.
    fn put_right(&mut self, rules: &RuleSet, is_last: bool) -> Result<Vec<String>, Error> {
        // What is replaced as a whole need not be known in full, which takes long and can be disturbed.
        let is = if is_last { read_frame(&mut self.nft, &self.table)? } else { self.read()? };
        self.renderer.adopt(&is);
        let should = self.renderer.whole(rules);
        let findings = match is_last {
            true => replace(&is, should, "the table could not be put right piece by piece".to_owned()),
            false => compare(&is, should),
        };
        for step in &findings.steps {
            self.nft.commit(&self.table, step)?;
        }
        Ok(findings.faults)
    }
}

/// Over a socket of its own, because it may be left in the middle of an answer.
fn read_digest(table: &TableId, flag: &YieldFlag) -> Result<Digest, Error> {
    let mut nft = Nftables::open()?;
    let frame = read_frame(&mut nft, table)?;
    let sets = frame.own_sets();
    let mut digest = Digest::new(frame);
    for set in sets {
        nft.ask(
            table,
            &Question::Elements(&set),
            &mut digest,
            |d| d.forget(&set),
            |d, notice| {
                d.hear(notice);
                !flag.is_raised()
            },
        )?;
    }
    Ok(digest)
}

/// Everything but elements, of which there are many.
fn read_frame(nft: &mut Nftables, table: &TableId) -> Result<Content, Error> {
    let mut content = Content::default();
    let hear = |content: &mut Content, notice| {
        content.hear(notice);
        true
    };
    nft.ask(table, &Question::Tables, &mut content, |c| *c = Content::default(), hear)?;
    if !content.is_there {
        return Ok(content);
    }
    let no_chains = |c: &mut Content| {
        c.chains.clear();
        c.foreign_chains.clear();
    };
    nft.ask(table, &Question::Chains, &mut content, no_chains, hear)?;
    let no_rules = |c: &mut Content| c.chains.iter_mut().for_each(|(_, rules)| rules.clear());
    nft.ask(table, &Question::Rules, &mut content, no_rules, hear)?;
    let no_sets = |c: &mut Content| {
        c.sets.clear();
        c.foreign_sets.clear();
    };
    nft.ask(table, &Question::Sets, &mut content, no_sets, hear)?;
    Ok(content)
}

impl Dataplane for NftDataplane {
    fn verify(&mut self, rules: &RuleSet, flag: &YieldFlag) -> Result<Outcome<Vec<String>>, Error> {
        match self.is_right(rules, flag) {
            Err(Error::Unread(_)) if self.times_unread >= MOST_UNREAD => {}
            Err(error) => {
                self.times_unread += u32::from(matches!(error, Error::Unread(_)));
                return Err(error);
            }
            Ok(Outcome::Left) => return Ok(Outcome::Left),
            Ok(Outcome::Done(true)) => {
                self.times_unread = 0;
                let messages = self.renderer.sweep();
                self.nft.commit(&self.table, &messages)?;
                return Ok(Outcome::Done(Vec::new()));
            }
            Ok(Outcome::Done(false)) => {}
        }
        let (mut tries, mut is_disturbed) = (0, false);
        loop {
            tries += 1;
            match self.put_right(rules, is_disturbed || tries == TRIES) {
                // Refused because it was not as we had just seen it.
                Err(Error::Nftables(sys::nft::Error::Refused { .. } | sys::nft::Error::NotListed { .. }))
                    if tries < TRIES => {}
                Err(Error::Nftables(sys::nft::Error::Disturbed { .. })) if tries < TRIES => {
                    is_disturbed = true
                }
                Err(error) => return Err(error),
                Ok(faults) => {
                    self.times_unread = 0;
                    return Ok(Outcome::Done(faults));
                }
            }
        }
    }

    fn apply(&mut self, rules: &RuleSet, delta: &Delta) -> Result<(), Error> {
        let messages = self.renderer.change(rules, delta);
        Ok(self.nft.commit(&self.table, &messages)?)
    }

    fn listen(&mut self) -> Result<mpsc::Receiver<()>, Error> {
        let (monitor, table, own) = (Monitor::open()?, self.table.clone(), self.nft.port());
        let (notify, notifications) = mpsc::channel(1);
        let monitor_thread = thread::Builder::new().name("nft-monitor".into());
        let last = self.last_to_touch.clone();
        monitor_thread
            .spawn(move || listen(monitor, &table, own, &notify, &last))
            .map_err(Error::Listening)?;
        Ok(notifications)
    }

    fn last_to_touch(&self) -> Option<String> {
        self.last_to_touch.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Notifies whenever others touched the table, until nobody is there to hear it.
fn listen(mut monitor: Monitor, table: &TableId, own: u32, notify: &mpsc::Sender<()>, last: &LastToTouch) {
    while !notify.is_closed() {
        let heard = monitor.wait(LISTEN_MILLISECONDS).and_then(|is_any| match is_any {
            true => monitor.read(table, own).map(|(seen, _)| seen),
            false => Ok(Sighting::Nothing),
        });
        match heard {
            Ok(Sighting::Nothing) => {}
            Ok(Sighting::Touched | Sighting::Lost) => {
                let who = monitor.author().map(|who| format!("process {} ({})", who.pid, who.name));
                *last.lock().unwrap_or_else(PoisonError::into_inner) = who;
                // One notification that waits is enough.
                let _ = notify.try_send(());
            }
            Err(cause) => {
                tracing::warn!(%table, %cause, "no longer notified when others change the table");
                return;
            }
        }
    }
}
