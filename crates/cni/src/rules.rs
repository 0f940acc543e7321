//! Elements of our own table, by whose they are.

use std::net::IpAddr;

use cni_core::request::AttachmentId;
use cni_core::table::{self, Entry, SetId};
use cni_core::{CniError, Code};
use nft::{Element, Family, Message, Question, What};
use rustix::io::Errno;
use sys::nft::{Error, Nftables};

const FAMILIES: [Family; 2] = [Family::Ip, Family::Ip6];
/// Others change sets while we look at them; each of them is done before we look again.
const TRIES: usize = 20;

#[derive(Debug)]
pub(crate) struct Rules {
    nft: Nftables,
}

// === impl Rules ===

impl Rules {
    pub(crate) fn open() -> Result<Self, CniError> {
        Ok(Self { nft: Nftables::open().map_err(|e| failed("opening nf_tables", &e))? })
    }

    /// Adds elements, all of a family at once. Those in their place that are older than who has their address now go; a port
    /// of the machine that is somebody else's is a conflict.
    pub(crate) fn add(&mut self, entries: &[Entry]) -> Result<(), CniError> {
        for family in FAMILIES {
            let of_family: Vec<&Entry> = entries.iter().filter(|entry| entry.family == family).collect();
            if !of_family.is_empty() {
                self.add_to(family, &of_family)?;
            }
        }
        Ok(())
    }

    fn add_to(&mut self, family: Family, entries: &[&Entry]) -> Result<(), CniError> {
        let id = table::table(family);
        let additions = additions(entries);
        let mut messages = additions.clone();
        for _ in 0..TRIES {
            match self.nft.commit(&id, &messages) {
                Ok(()) => return Ok(()),
                Err(Error::Refused { cause: Errno::NOENT, .. }) => {
                    messages = [table::skeleton(family), additions.clone()].concat();
                }
                Err(Error::Refused { cause: Errno::EXIST | Errno::NOTEMPTY, .. }) => {
                    let older = self.older(family, entries)?;
                    messages = [older, additions.clone()].concat();
                }
                Err(e) => return Err(failed("adding to", &e)),
            }
        }
        Err(CniError::new(Code::Later, format!("table {id} changed too often to add to it")))
    }

    /// The elements that are in the place of others, as deletions.
    fn older(&mut self, family: Family, entries: &[&Entry]) -> Result<Vec<Message>, CniError> {
        let mut deletions = Vec::new();
        for set in sets(entries) {
            let there = self.elements(family, set)?;
            for entry in entries.iter().filter(|entry| entry.set == set) {
                let Some(other) = there.iter().find(|other| is_in_the_way(set, other, &entry.element)) else {
                    continue;
                };
                if set.is_claimed()
                    && other.comment != entry.element.comment
                    && other.value != entry.element.value
                {
                    let whose = other.comment.as_deref().unwrap_or("somebody");
                    let why = format!("{} is taken by {whose}", table::shown(entry));
                    return Err(CniError::new(Code::Taken, why));
                }
                let deletion = Message::DeleteElements(set.name().into(), vec![place(other)]);
                if !deletions.contains(&deletion) {
                    deletions.push(deletion);
                }
            }
        }
        Ok(deletions)
    }

    /// Whether all are there, and whose they should be.
    pub(crate) fn check(&mut self, entries: &[Entry]) -> Result<(), CniError> {
        for family in FAMILIES {
            let of_family: Vec<&Entry> = entries.iter().filter(|entry| entry.family == family).collect();
            for set in sets(&of_family) {
                let there = self.elements(family, set)?;
                let missing = of_family.iter().filter(|entry| entry.set == set).find(|entry| {
                    !there.iter().any(|element| {
                        is_same_place(element, &entry.element)
                            && element.value == entry.element.value
                            && element.comment == entry.element.comment
                    })
                });
                if let Some(entry) = missing {
                    let why = format!("{} is not in table {}", table::shown(entry), table::table(family));
                    return Err(CniError::new(Code::Changed, why));
                }
            }
        }
        Ok(())
    }

    /// Whatever is one attachment's, in some of the sets, goes.
    pub(crate) fn remove(&mut self, of: &[SetId], network: &str, id: &AttachmentId) -> Result<(), CniError> {
        let label = table::label(network, id);
        self.remove_if(of, |comment| comment == label)
    }

    /// What is a network's goes, except for what is of attachments that live.
    pub(crate) fn keep(
        &mut self,
        of: &[SetId],
        network: &str,
        valid: &[AttachmentId],
    ) -> Result<(), CniError> {
        let begin = table::label_of_network(network);
        let labels: Vec<String> = valid.iter().map(|id| table::label(network, id)).collect();
        self.remove_if(of, |comment| {
            let is_whole_network = comment == begin;
            let is_alive =
                if is_whole_network { !valid.is_empty() } else { labels.iter().any(|l| l == comment) };
            comment.starts_with(&begin) && !is_alive
        })
    }

    fn remove_if(&mut self, of: &[SetId], is_wrong: impl Fn(&str) -> bool) -> Result<(), CniError> {
        for family in FAMILIES {
            self.remove_from(family, of, &is_wrong)?;
        }
        Ok(())
    }

    fn remove_from(
        &mut self,
        family: Family,
        of: &[SetId],
        is_wrong: &impl Fn(&str) -> bool,
    ) -> Result<(), CniError> {
        let id = table::table(family);
        for _ in 0..TRIES {
            let mut deletions = Vec::new();
            for set in of {
                let mut found = self.elements(family, *set)?;
                found.retain(|element| element.comment.as_deref().is_some_and(is_wrong));
                let places: Vec<Element> = found.iter().map(place).collect();
                if !places.is_empty() {
                    deletions.push(Message::DeleteElements(set.name().into(), places));
                }
            }
            match self.nft.commit(&id, &deletions) {
                Ok(()) => return Ok(()),
                // Somebody else was faster with one of them.
                Err(Error::Refused { cause: Errno::NOENT, .. }) => {}
                Err(e) => return Err(failed("deleting from", &e)),
            }
        }
        Err(CniError::new(Code::Later, format!("table {id} changed too often to delete from it")))
    }

    /// Whether the packets of an address look like the machine's outside of its network.
    pub(crate) fn is_masqueraded(&mut self, ip: IpAddr) -> Result<bool, CniError> {
        let [_, wanted] = table::masquerade(ip.into(), "");
        let there = self.elements(wanted.family, wanted.set)?;
        Ok(there.iter().any(|element| element.key == wanted.element.key))
    }

    /// A table goes when it is empty.
    pub(crate) fn clean_up(&mut self) -> Result<(), CniError> {
        for family in FAMILIES {
            let mut is_empty = true;
            for set in SetId::ALL {
                is_empty &= self.elements(family, set)?.is_empty();
            }
            let gone = match is_empty {
                true => self.nft.commit(&table::table(family), &[Message::DeleteTable]),
                false => Ok(()),
            };
            match gone {
                Err(Error::Refused { cause: Errno::NOENT, .. }) | Ok(()) => {}
                Err(e) => return Err(failed("deleting", &e)),
            }
        }
        Ok(())
    }

    /// None of a table that is not there.
    fn elements(&mut self, family: Family, set: SetId) -> Result<Vec<Element>, CniError> {
        let mut found: Vec<Element> = Vec::new();
        let question = Question::Elements(set.name());
        let asked =
            self.nft.ask(&table::table(family), &question, &mut found, Vec::clear, |found, notice| {
                if let What::Elements(_, Some(elements)) = notice.what {
                    found.extend(elements);
                }
                true
            });
        match asked {
            Ok(()) => Ok(found),
            Err(Error::NotListed { cause: Errno::NOENT, .. }) => Ok(vec![]),
            Err(e) => Err(failed("listing", &e)),
        }
    }
}

fn failed(act: &str, cause: &Error) -> CniError {
    CniError::kernel(format_args!("{act} our table"), cause)
}

fn sets(entries: &[&Entry]) -> Vec<SetId> {
    let mut sets: Vec<SetId> = entries.iter().map(|entry| entry.set).collect();
    sets.sort_unstable();
    sets.dedup();
    sets
}

fn additions(entries: &[&Entry]) -> Vec<Message> {
    let of =
        |set: SetId| entries.iter().filter(move |entry| entry.set == set).map(|entry| entry.element.clone());
    let add = |set: SetId, elements: Vec<Element>| match set.is_shared() {
        true => Message::AddElements(set.name().into(), elements),
        false => Message::AddNewElements(set.name().into(), elements),
    };
    sets(entries).into_iter().map(|set| add(set, of(set).collect())).collect()
}

/// The key alone says which one is meant.
fn place(element: &Element) -> Element {
    Element { value: None, comment: None, ..element.clone() }
}

fn is_same_place(one: &Element, other: &Element) -> bool {
    one.key == other.key && one.end == other.end
}

/// Of the containers in a network each has one range of neighbours, however long it was before.
fn is_in_the_way(set: SetId, one: &Element, other: &Element) -> bool {
    match set {
        SetId::Neighbours => one.key[..one.key.len() / 2] == other.key[..other.key.len() / 2],
        _ => is_same_place(one, other),
    }
}
