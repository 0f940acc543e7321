//! What is kept of each object, by name and by whatever else it is looked for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

/// What an object is called. Its namespace is empty where it has none.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

/// Which object, in which state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub key: Key,
    pub uid: String,
    /// Zero where it is no number.
    pub revision: u64,
}

/// Another way to find objects, chosen by who looks for them: the terms under which `of` files one.
pub struct Index<K> {
    pub name: &'static str,
    pub of: fn(&K) -> Vec<String>,
}

/// As large as the resource has objects.
#[derive(Debug)]
pub(super) struct Store<K> {
    objects: BTreeMap<Key, Kept<K>>,
    indexes: Vec<(Index<K>, Filed)>,
    /// Counts lists, so that what the last one did not have is found.
    list: u64,
}

/// Keys by term.
type Filed = HashMap<String, BTreeSet<Key>>;

#[derive(Debug)]
struct Kept<K> {
    uid: String,
    revision: u64,
    /// The list that had it last, or that was last when it was told.
    list: u64,
    kept: K,
}

/// What is known of an object that was told of.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Standing<K> {
    Unknown,
    /// In this very state.
    Same,
    Changed,
    /// Another object had the name until now.
    Replaced(K),
}

// === impl Store ===

impl<K> Store<K> {
    pub(super) fn new(indexes: Vec<Index<K>>) -> Store<K> {
        let indexes = indexes.into_iter().map(|index| (index, Filed::new())).collect();
        Store { objects: BTreeMap::new(), indexes, list: 0 }
    }

    /// A list begins.
    pub(super) fn begin(&mut self) {
        self.list += 1;
    }

    /// The object is there. One of the same name that is another object is forgotten.
    pub(super) fn see(&mut self, identity: &Identity) -> Standing<K> {
        let Some(known) = self.objects.get_mut(&identity.key) else { return Standing::Unknown };
        if known.uid != identity.uid {
            return self.remove(&identity.key).map_or(Standing::Unknown, Standing::Replaced);
        }
        known.list = self.list;
        let is_same = known.revision == identity.revision && identity.revision != 0;
        if is_same { Standing::Same } else { Standing::Changed }
    }

    /// Keeps it; returns what was kept before.
    pub(super) fn put(&mut self, identity: Identity, kept: K) -> Option<K> {
        let Identity { key, uid, revision } = identity;
        let old = self.remove(&key);
        for (index, filed) in &mut self.indexes {
            for term in (index.of)(&kept) {
                filed.entry(term).or_default().insert(key.clone());
            }
        }
        self.objects.insert(key, Kept { uid, revision, list: self.list, kept });
        old
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<K> {
        let old = self.objects.remove(key)?.kept;
        for (index, filed) in &mut self.indexes {
            for term in (index.of)(&old) {
                let Some(keys) = filed.get_mut(&term) else { continue };
                keys.remove(key);
                if keys.is_empty() {
                    filed.remove(&term);
                }
            }
        }
        Some(old)
    }

    /// Forgets what the list that ends here did not have, and returns it.
    pub(super) fn sweep(&mut self) -> Vec<(Key, K)> {
        let is_gone = |kept: &Kept<K>| kept.list != self.list;
        let gone: Vec<Key> =
            self.objects.iter().filter(|(_, k)| is_gone(k)).map(|(key, _)| key.clone()).collect();
        gone.into_iter().filter_map(|key| self.remove(&key).map(|old| (key, old))).collect()
    }

    pub(super) fn get(&self, key: &Key) -> Option<&K> {
        self.objects.get(key).map(|known| &known.kept)
    }

    /// What is kept of this object, not of an earlier one of its name.
    pub(super) fn get_same(&self, identity: &Identity) -> Option<&K> {
        self.objects.get(&identity.key).filter(|known| known.uid == identity.uid).map(|known| &known.kept)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &K)> {
        self.objects.iter().map(|(key, known)| (key, &known.kept))
    }

    /// Of one namespace.
    pub(super) fn in_namespace<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = (&'a Key, &'a K)> {
        let from = Key { namespace: namespace.to_owned(), name: String::new() };
        let all = self.objects.range(from..).map(|(key, known)| (key, &known.kept));
        all.take_while(move |(key, _)| key.namespace == namespace)
    }

    /// Filed under `term`. Nothing where there is no such index.
    pub(super) fn indexed<'a>(&'a self, index: &str, term: &str) -> impl Iterator<Item = (&'a Key, &'a K)> {
        let filed = self.indexes.iter().find(|(known, _)| known.name == index).map(|(_, filed)| filed);
        let keys = filed.and_then(|filed| filed.get(term)).into_iter().flatten();
        keys.filter_map(|key| Some((key, self.get(key)?)))
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    /// One more index; what is kept already is filed in it.
    pub(super) fn add_index(&mut self, index: Index<K>) {
        if self.indexes.iter().any(|(known, _)| known.name == index.name) {
            return;
        }
        let mut filed = Filed::new();
        for (key, known) in &self.objects {
            for term in (index.of)(&known.kept) {
                filed.entry(term).or_default().insert(key.clone());
            }
        }
        self.indexes.push((index, filed));
    }
}

// === impl Key ===

impl Key {
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Key {
        Key { namespace: namespace.into(), name: name.into() }
    }
}

/// `namespace/name`, as upstream's keys read.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl Index ===

impl<K> fmt::Debug for Index<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Index({})", self.name)
    }
}
