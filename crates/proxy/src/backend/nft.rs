//! nftables: one table per family, one transaction per change.

use std::thread;

use nft::{Question, TableId};
use proxy_core::nft::{Content, Renderer, compare};
use proxy_core::objects::Family;
use proxy_core::rules::{Delta, RuleSet};
use sys::nft::{Monitor, Nftables, Sighting};
use tokio::sync::mpsc;

use crate::knock::{Knock, Outcome, discard};
use crate::ports::{Dataplane, Error};

/// Somebody may change the table while we put it right; then we look again.
const TRIES: usize = 5;

/// How long it takes at most to notice that nobody listens to the listener.
const LISTEN_MILLISECONDS: u32 = 500;

#[derive(Debug)]
pub struct NftDataplane {
    nft: Nftables,
    table: TableId,
    renderer: Renderer,
}

// === impl NftDataplane ===

impl NftDataplane {
    /// In the network namespace that the calling thread is in.
    pub fn open(family: Family, masquerade_bit: u8) -> Result<Self, Error> {
        Ok(Self {
            nft: Nftables::open()?,
            table: proxy_core::nft::table(family),
            renderer: Renderer::new(family, masquerade_bit),
        })
    }

    /// What the kernel holds, in the network namespace that the calling thread is in.
    pub fn read(&mut self) -> Result<Content, Error> {
        read(&self.table, &Knock::default())
    }

    /// Deletes the table, with everything in it.
    pub fn remove(&mut self) -> Result<(), Error> {
        Ok(self.nft.commit(&self.table, &[nft::Message::DeleteTable])?)
    }

    /// Reading and comparing go on aside, so that they can be left at any time; what needs the rules stops by itself.
    fn verify_once(&mut self, rules: &RuleSet, knock: &Knock) -> Result<Outcome<Vec<String>>, Error> {
        let (table, ear) = (self.table.clone(), knock.clone());
        let reading = knock.unless(move || read(&table, &ear).map(Content::sorted));
        let Outcome::Done(is) = reading.map_err(Error::Thread)? else { return Ok(Outcome::Left) };
        let is = match is {
            Err(Error::Nftables(sys::nft::Error::Left { .. })) => return Ok(Outcome::Left),
            read => read?,
        };
        self.renderer.adopt(&is);
        let draft = self.renderer.draft(rules, || !knock.is_heard());
        if !draft.is_whole() {
            discard((is, draft));
            return Ok(Outcome::Left);
        }
        let comparing = knock.unless(move || compare(&is, draft.finish()));
        let Outcome::Done(findings) = comparing.map_err(Error::Thread)? else { return Ok(Outcome::Left) };
        for step in &findings.steps {
            self.nft.commit(&self.table, step)?;
        }
        // The first time they are as large as all rules.
        discard(findings.steps);
        Ok(Outcome::Done(findings.faults))
    }
}

/// Over a socket of its own, because it may be left in the middle of an answer.
fn read(table: &TableId, knock: &Knock) -> Result<Content, Error> {
    let mut nft = Nftables::open()?;
    let mut content = Content::default();
    let hear = |content: &mut Content, notice| {
        content.hear(notice);
        !knock.is_heard()
    };
    nft.ask(table, &Question::Tables, &mut content, |c| *c = Content::default(), hear)?;
    if !content.is_there {
        return Ok(content);
    }
    nft.ask(table, &Question::Chains, &mut content, |c| c.chains.clear(), hear)?;
    let no_rules = |c: &mut Content| c.chains.iter_mut().for_each(|(_, rules)| rules.clear());
    nft.ask(table, &Question::Rules, &mut content, no_rules, hear)?;
    let no_sets = |c: &mut Content| {
        c.sets.clear();
        c.foreign_sets.clear();
    };
    nft.ask(table, &Question::Sets, &mut content, no_sets, hear)?;
    let asked_for = content.sets.iter().filter(|(set, _)| !set.is_dynamic);
    let sets: Vec<_> = asked_for.map(|(set, _)| set.name.clone()).collect();
    for name in sets {
        let no_elements = |c: &mut Content| {
            c.sets.iter_mut().filter(|(set, _)| set.name == name).for_each(|(_, e)| e.clear());
        };
        nft.ask(table, &Question::Elements(&name), &mut content, no_elements, hear)?;
    }
    Ok(content)
}

impl Dataplane for NftDataplane {
    fn verify(&mut self, rules: &RuleSet, knock: &Knock) -> Result<Outcome<Vec<String>>, Error> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.verify_once(rules, knock) {
                // Refused because it was not as we had just seen it.
                Err(Error::Nftables(sys::nft::Error::Refused { .. } | sys::nft::Error::NotListed { .. }))
                    if tries < TRIES => {}
                other => return other,
            }
        }
    }

    fn apply(&mut self, rules: &RuleSet, delta: &Delta) -> Result<(), Error> {
        let messages = self.renderer.change(rules, delta);
        Ok(self.nft.commit(&self.table, &messages)?)
    }

    fn listen(&mut self) -> Result<mpsc::Receiver<()>, Error> {
        let (monitor, table, own) = (Monitor::open()?, self.table.clone(), self.nft.port());
        let (alarm, alarms) = mpsc::channel(1);
        let ears = thread::Builder::new().name("nft-monitor".into());
        ears.spawn(move || listen(monitor, &table, own, &alarm)).map_err(Error::Listening)?;
        Ok(alarms)
    }
}

/// Raises the alarm whenever others touched the table, until nobody is there to hear it.
fn listen(mut monitor: Monitor, table: &TableId, own: u32, alarm: &mpsc::Sender<()>) {
    while !alarm.is_closed() {
        let heard = monitor.wait(LISTEN_MILLISECONDS).and_then(|is_any| match is_any {
            true => monitor.read(table, own).map(|(seen, _)| seen),
            false => Ok(Sighting::Nothing),
        });
        match heard {
            Ok(Sighting::Nothing) => {}
            // One alarm that is not heard yet is enough.
            Ok(Sighting::Touched | Sighting::Lost) => drop(alarm.try_send(())),
            Err(cause) => {
                tracing::warn!(%table, %cause, "no longer hearing when others change the table");
                return;
            }
        }
    }
}
