//! The text that iptables-restore reads.

use std::fmt::{self, Write};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    Filter,
    Nat,
    Mangle,
}

/// Changes of the tables, one transaction each. A chain that is named is made, or emptied if it is there, before any
/// rule is added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    filter: Part,
    nat: Part,
    mangle: Part,
    /// How many rules it adds to chains of single Service ports, and how many were in those that it replaces.
    pub(super) of_ports: usize,
    pub(super) of_ports_before: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Part {
    chains: String,
    rules: String,
    count: usize,
}

// === impl Table ===

impl Table {
    pub const ALL: [Table; 3] = [Table::Filter, Table::Nat, Table::Mangle];

    pub fn name(self) -> &'static str {
        match self {
            Table::Filter => "filter",
            Table::Nat => "nat",
            Table::Mangle => "mangle",
        }
    }
}

// === impl Script ===

impl Script {
    /// How many rules the script adds to a table.
    pub fn rules(&self, table: Table) -> usize {
        self.part(table).count
    }

    /// How many rules there are in the chains of all Service ports after it, given how many there were before.
    pub fn rules_of_ports(&self, before: usize) -> usize {
        (before + self.of_ports).saturating_sub(self.of_ports_before)
    }

    /// How many rules there are in the nat table after it, given how many are in the chains of all Service ports then.
    pub fn nat_rules(&self, of_ports: usize) -> usize {
        self.nat.count + of_ports - self.of_ports
    }

    pub fn is_empty(&self) -> bool {
        Table::ALL.iter().all(|t| self.part(*t).chains.is_empty() && self.part(*t).rules.is_empty())
    }

    pub(crate) fn chain(&mut self, table: Table, name: &str) {
        line(&mut self.part_mut(table).chains, format_args!(":{name} - [0:0]"));
    }

    pub(crate) fn append(&mut self, table: Table, chain: &str, rule: fmt::Arguments<'_>) {
        let part = self.part_mut(table);
        part.count += 1;
        line(&mut part.rules, format_args!("-A {chain} {rule}"));
    }

    pub(super) fn prepend(&mut self, table: Table, chain: &str, rule: fmt::Arguments<'_>) {
        line(&mut self.part_mut(table).rules, format_args!("-I {chain} 1 {rule}"));
    }

    pub(super) fn delete_rule(&mut self, table: Table, rule: &str) {
        line(&mut self.part_mut(table).rules, format_args!("-D {rule}"));
    }

    /// The chain is emptied first, which is what naming it does.
    pub(super) fn delete_chain(&mut self, table: Table, name: &str) {
        self.chain(table, name);
        line(&mut self.part_mut(table).rules, format_args!("-X {name}"));
    }

    fn part(&self, table: Table) -> &Part {
        match table {
            Table::Filter => &self.filter,
            Table::Nat => &self.nat,
            Table::Mangle => &self.mangle,
        }
    }

    fn part_mut(&mut self, table: Table) -> &mut Part {
        match table {
            Table::Filter => &mut self.filter,
            Table::Nat => &mut self.nat,
            Table::Mangle => &mut self.mangle,
        }
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for table in Table::ALL {
            let part = self.part(table);
            if !part.chains.is_empty() || !part.rules.is_empty() {
                write!(f, "*{}\n{}{}COMMIT\n", table.name(), part.chains, part.rules)?;
            }
        }
        Ok(())
    }
}

/// Writing to a String cannot fail.
fn line(out: &mut String, text: fmt::Arguments<'_>) {
    let _ = writeln!(out, "{text}");
}
