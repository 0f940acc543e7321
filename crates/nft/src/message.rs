//! One step of a transaction, and what the kernel tells of a table.

use std::ops::Range;

use crate::expr::{Expr, read_value, write_value};
use crate::object::{
    Chain, ChainType, Element, Field, Hook, HookPoint, Rule, Set, TableId, Value, Values, comment_data,
    read_comment,
};
use crate::verdict::{Family, Name, Verdict};
use crate::wire::{
    Attribute, Attributes, FLAG_ACK, FLAG_APPEND, FLAG_CREATE, FLAG_DUMP, FLAG_EXCLUSIVE, Header, SUBSYSTEM,
    Writer,
};

/// One step. Steps happen in order, and all of a transaction or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Nothing happens if it is there.
    AddTable,
    /// The same with a comment of one's own.
    AddTableFor(Name),
    DeleteTable,
    AddChain(Chain),
    DeleteChain(Name),
    /// Removes its rules.
    FlushChain(Name),
    /// At the end of the chain.
    AddRule(Name, Rule),
    AddSet(Set),
    DeleteSet(Name),
    AddElements(Name, Vec<Element>),
    /// The same, and refused if one is there already, whatever it holds.
    AddNewElements(Name, Vec<Element>),
    DeleteElements(Name, Vec<Element>),
}

/// One transaction in netlink form: one datagram.
#[derive(Clone, Debug)]
pub struct Batch {
    pub bytes: Vec<u8>,
    /// For each message, which sequence numbers tell of it. A long list of elements takes several.
    pub sequences: Vec<Range<u32>>,
}

/// What the kernel tells of one table, in a dump or because it changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub table: TableId,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// With its flags, of which we never set any.
    Table(u32),
    /// `None` for a chain that the kernel calls in a way in which we never let it.
    Chain(Name, Option<Chain>),
    Rule(Name, Rule),
    /// `None` for a set of types that we never use.
    Set(Name, Option<Set>),
    /// `None` for elements that we never write.
    Elements(Name, Option<Vec<Element>>),
    /// Anything else that a table can hold, or something was deleted.
    Other,
}

/// Counts transactions of a network namespace, whoever makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(pub u32);

/// The process that made a transaction. A thread may have a name of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Author {
    pub pid: u32,
    pub name: String,
}

/// What may be asked for. Elements are asked for set by set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question<'a> {
    Tables,
    Chains,
    Rules,
    Sets,
    Elements(&'a str),
}

const NEW_TABLE: u8 = 0;
const GET_TABLE: u8 = 1;
const DELETE_TABLE: u8 = 2;
const NEW_CHAIN: u8 = 3;
const GET_CHAIN: u8 = 4;
const DELETE_CHAIN: u8 = 5;
const NEW_RULE: u8 = 6;
const GET_RULE: u8 = 7;
const DELETE_RULE: u8 = 8;
const NEW_SET: u8 = 9;
const GET_SET: u8 = 10;
const DELETE_SET: u8 = 11;
const NEW_ELEMENTS: u8 = 12;
const GET_ELEMENTS: u8 = 13;
const DELETE_ELEMENTS: u8 = 14;
const NEW_GENERATION: u8 = 15;

const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;

const SET_ANONYMOUS: u32 = 0x1;
const SET_INTERVAL: u32 = 0x4;
const SET_MAP: u32 = 0x8;
const SET_TIMEOUT: u32 = 0x10;
const SET_DYNAMIC: u32 = 0x20;
const SET_CONCATENATED: u32 = 0x80;
const DATA_VERDICT: u32 = 0xffff_ff00;

/// An attribute ends at 64 KiB; one more element has to fit.
const FULL: usize = 60_000;

pub const TABLE_COMMENT: &str = "rules for kube-proxy";

// === impl Batch ===

impl Batch {
    /// The first sequence number is `first`; every message has its own.
    pub fn new(table: &TableId, messages: &[Message], first: u32) -> Self {
        let mut pen = Pen { out: Writer::default(), table, sequence: first };
        pen.envelope(BATCH_BEGIN, 0);
        let mut sequences = Vec::with_capacity(messages.len());
        for (index, message) in messages.iter().enumerate() {
            let start = pen.sequence;
            pen.message(message, index + 1 == messages.len());
            sequences.push(start..pen.sequence);
        }
        pen.envelope(BATCH_END, 0);
        Self { bytes: pen.out.into_bytes(), sequences }
    }

    /// The message that a sequence number belongs to.
    pub fn index_of(&self, sequence: u32) -> Option<usize> {
        let at = self.sequences.partition_point(|range| range.end <= sequence);
        self.sequences.get(at).filter(|range| range.contains(&sequence)).map(|_| at)
    }

    /// The one that is acknowledged, if all went well.
    pub fn last(&self) -> Option<u32> {
        self.sequences.last().map(|range| range.end - 1)
    }
}

struct Pen<'a> {
    out: Writer,
    table: &'a TableId,
    sequence: u32,
}

impl Pen<'_> {
    fn envelope(&mut self, kind: u16, flags: u16) {
        let mark = self.out.begin(kind, flags, self.sequence, 0, SUBSYSTEM);
        self.out.end(mark);
        self.sequence = self.sequence.wrapping_add(1);
    }

    fn message(&mut self, message: &Message, is_last: bool) {
        match message {
            Message::AddElements(set, elements) => {
                self.elements(NEW_ELEMENTS, FLAG_CREATE, (set, elements), is_last);
            }
            Message::AddNewElements(set, elements) => {
                self.elements(NEW_ELEMENTS, FLAG_CREATE | FLAG_EXCLUSIVE, (set, elements), is_last);
            }
            Message::DeleteElements(set, elements) => {
                self.elements(DELETE_ELEMENTS, 0, (set, elements), is_last);
            }
            other => self.single(other, is_last),
        }
    }

    fn single(&mut self, message: &Message, is_last: bool) {
        let (kind, flags) = match message {
            Message::AddTable | Message::AddTableFor(_) => (NEW_TABLE, FLAG_CREATE),
            Message::DeleteTable => (DELETE_TABLE, 0),
            Message::AddChain(_) => (NEW_CHAIN, FLAG_CREATE),
            Message::DeleteChain(_) => (DELETE_CHAIN, 0),
            Message::FlushChain(_) => (DELETE_RULE, 0),
            Message::AddRule(..) => (NEW_RULE, FLAG_CREATE | FLAG_APPEND),
            Message::AddSet(_) => (NEW_SET, FLAG_CREATE),
            Message::DeleteSet(_) => (DELETE_SET, 0),
            Message::AddElements(..) | Message::AddNewElements(..) | Message::DeleteElements(..) => return,
        };
        let ack = if is_last { FLAG_ACK } else { 0 };
        let family = self.table.family.number();
        let mark = self.out.begin(kind_of(kind), flags | ack, self.sequence, family, 0);
        self.out.text(1, &self.table.name);
        let (out, id) = (&mut self.out, self.sequence);
        match message {
            Message::AddTable => out.bytes(6, &comment_data(TABLE_COMMENT)),
            Message::AddTableFor(comment) => out.bytes(6, &comment_data(comment)),
            Message::AddChain(chain) => write_chain(out, chain),
            Message::DeleteChain(name) => out.text(3, name),
            Message::FlushChain(name) => out.text(2, name),
            Message::AddRule(chain, rule) => write_rule(out, chain, rule),
            Message::AddSet(set) => write_set(out, set, id),
            Message::DeleteSet(name) => out.text(2, name),
            Message::DeleteTable
            | Message::AddElements(..)
            | Message::AddNewElements(..)
            | Message::DeleteElements(..) => {}
        }
        self.out.end(mark);
        self.sequence = self.sequence.wrapping_add(1);
    }

    fn elements(&mut self, kind: u8, flags: u16, (set, elements): (&str, &[Element]), is_last: bool) {
        let mut left = elements.iter().peekable();
        while left.peek().is_some() {
            let start = self.out.len();
            let family = self.table.family.number();
            let mark = self.out.begin(kind_of(kind), flags, self.sequence, family, 0);
            self.out.text(1, &self.table.name);
            self.out.text(2, set);
            let list = self.out.nest(3);
            while let Some(element) = left.next_if(|_| self.out.nested_len(&list) < FULL) {
                write_element(&mut self.out, element, kind == NEW_ELEMENTS);
            }
            self.out.close(list);
            self.out.end(mark);
            if is_last && left.peek().is_none() {
                self.out.flag(start, FLAG_ACK);
            }
            self.sequence = self.sequence.wrapping_add(1);
        }
    }
}

fn kind_of(kind: u8) -> u16 {
    SUBSYSTEM << 8 | u16::from(kind)
}

fn write_chain(out: &mut Writer, chain: &Chain) {
    out.text(3, &chain.name);
    let Some(hook) = chain.hook else { return };
    let nest = out.nest(4);
    out.u32(1, hook.point as u32);
    out.bytes(2, &hook.priority.to_be_bytes());
    out.close(nest);
    out.u32(5, 1);
    out.text(7, hook.kind.name());
}

fn write_rule(out: &mut Writer, chain: &str, rule: &Rule) {
    out.text(2, chain);
    let list = out.nest(4);
    for expr in &rule.exprs {
        expr.write(out);
    }
    out.close(list);
    if let Some(comment) = &rule.comment {
        out.bytes(7, &comment_data(comment));
    }
}

fn write_set(out: &mut Writer, set: &Set, id: u32) {
    let is_concatenated_interval = set.is_interval && set.key.len() > 1;
    let flags = [
        (set.is_interval, SET_INTERVAL),
        (set.values.is_some(), SET_MAP),
        (set.is_dynamic, SET_DYNAMIC | SET_TIMEOUT),
        (is_concatenated_interval, SET_CONCATENATED),
    ];
    out.text(2, &set.name);
    out.u32(3, flags.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, flag)| all | flag));
    out.u32(4, Field::type_of(&set.key));
    out.u32(5, Field::wire_len(&set.key));
    match &set.values {
        Some(Values::Fields(fields)) => {
            out.u32(6, Field::type_of(fields));
            out.u32(7, Field::wire_len(fields));
        }
        Some(Values::Verdict) => out.u32(6, DATA_VERDICT),
        None => {}
    }
    let description = out.nest(9);
    if let Some(size) = set.size {
        out.u32(1, size);
    }
    if is_concatenated_interval {
        let fields = out.nest(2);
        for field in &set.key {
            let one = out.nest(1);
            out.u32(1, field.bytes());
            out.close(one);
        }
        out.close(fields);
    }
    out.close(description);
    out.u32(10, id);
    out.bytes(13, &set.user_data());
}

fn write_element(out: &mut Writer, element: &Element, is_new: bool) {
    let nest = out.nest(1);
    write_value(out, 1, &element.key);
    if let Some(end) = &element.end {
        write_value(out, 10, end);
    }
    if is_new {
        match &element.value {
            Some(Value::Data(data)) => write_value(out, 2, data),
            Some(Value::Verdict(verdict)) => verdict.write(out, 2),
            None => {}
        }
        if let Some(comment) = &element.comment {
            out.bytes(6, &comment_data(comment));
        }
    }
    out.close(nest);
}

// === impl Question ===

impl Question<'_> {
    pub fn write(&self, table: &TableId, sequence: u32) -> Vec<u8> {
        let kind = match self {
            Question::Tables => GET_TABLE,
            Question::Chains => GET_CHAIN,
            Question::Rules => GET_RULE,
            Question::Sets => GET_SET,
            Question::Elements(_) => GET_ELEMENTS,
        };
        let mut out = Writer::default();
        let mark = out.begin(kind_of(kind), FLAG_DUMP, sequence, table.family.number(), 0);
        // The kernel filters tables by nothing and chains not at all; for the rest it reads the name.
        if *self != Question::Tables {
            out.text(1, &table.name);
        }
        if let Question::Elements(set) = self {
            out.text(2, set);
        }
        out.end(mark);
        out.into_bytes()
    }
}

// === impl Generation ===

impl Generation {
    /// The end of a transaction, as the monitor sees it.
    pub fn read(header: Header, body: &[u8]) -> Option<Self> {
        if header.kind != kind_of(NEW_GENERATION) {
            return None;
        }
        Attributes(body.get(4..)?).get(1)?.u32().map(Generation)
    }
}

// === impl Author ===

impl Author {
    /// From the end of a transaction, as the monitor sees it.
    pub fn read(header: Header, body: &[u8]) -> Option<Self> {
        if header.kind != kind_of(NEW_GENERATION) {
            return None;
        }
        let attributes = Attributes(body.get(4..)?);
        let name = attributes.get(3)?.text()?.to_owned();
        Some(Self { pid: attributes.get(2)?.u32()?, name })
    }
}

// === impl Notice ===

impl Notice {
    /// Whether the table is spoken of, without reading what is said.
    pub fn is_about(header: Header, body: &[u8], table: &TableId) -> bool {
        let [subsystem, kind] = header.kind.to_be_bytes();
        u16::from(subsystem) == SUBSYSTEM
            && kind != NEW_GENERATION
            && body.first() == Some(&table.family.number())
            && Attributes(body.get(4..).unwrap_or_default()).get(1).and_then(|name| name.text())
                == Some(&*table.name)
    }

    /// `None` for what is not about a table of a family we know.
    pub fn read(header: Header, body: &[u8]) -> Option<Self> {
        let [subsystem, kind] = header.kind.to_be_bytes();
        if u16::from(subsystem) != SUBSYSTEM || kind == NEW_GENERATION {
            return None;
        }
        let family = Family::from_number(*body.first()?)?;
        let attributes = Attributes(body.get(4..)?);
        let name = attributes.get(1)?.text()?;
        let what = match kind {
            NEW_TABLE => What::Table(attributes.get(2).and_then(|flags| flags.u32()).unwrap_or(0)),
            NEW_CHAIN => {
                let name = attributes.get(3).and_then(|name| name.text());
                name.map_or(What::Other, |name| What::Chain(name.into(), read_chain(name.into(), attributes)))
            }
            NEW_RULE => read_rule(attributes).map_or(What::Other, |(chain, rule)| What::Rule(chain, rule)),
            NEW_SET => {
                // A set without a name of its own is part of a rule, and goes with it.
                let name = attributes.get(2).and_then(|name| name.text());
                let name = name.filter(|_| set_flags(attributes) & SET_ANONYMOUS == 0);
                name.map_or(What::Other, |name| What::Set(name.into(), read_set(name.into(), attributes)))
            }
            NEW_ELEMENTS => {
                let set = attributes.get(2).and_then(|set| set.text());
                set.map_or(What::Other, |set| What::Elements(set.into(), read_elements(attributes)))
            }
            _ => What::Other,
        };
        Some(Self { table: TableId { family, name: name.into() }, what })
    }
}

fn read_chain(name: Name, attributes: Attributes<'_>) -> Option<Chain> {
    let hook = match attributes.get(4) {
        None => None,
        Some(hook) => Some(read_hook(attributes, hook)?),
    };
    Some(Chain { name, hook })
}

fn read_hook(attributes: Attributes<'_>, hook: Attribute<'_>) -> Option<Hook> {
    let kind = attributes.get(7)?.text()?;
    let point = usize::try_from(hook.nested().get(1)?.u32()?).ok()?;
    // A policy that is not "accept" is not ours.
    attributes.get(5).is_none_or(|policy| policy.u32() == Some(1)).then_some(())?;
    Some(Hook {
        kind: [ChainType::Filter, ChainType::Nat].into_iter().find(|known| known.name() == kind)?,
        point: *HookPoint::ALL.get(point)?,
        priority: hook.nested().get(2)?.u32()? as i32,
    })
}

fn read_rule(attributes: Attributes<'_>) -> Option<(Name, Rule)> {
    let chain = attributes.get(2)?.text()?.into();
    let expressions = attributes.get(4).into_iter().flat_map(|list| list.nested());
    let exprs: Option<Vec<Expr>> = expressions.map(|element| Expr::read(element.nested())).collect();
    let comment = attributes.get(7).and_then(|data| read_comment(data.data));
    Some((chain, Rule { exprs: exprs?, comment }))
}

fn set_flags(attributes: Attributes<'_>) -> u32 {
    attributes.get(3).and_then(|flags| flags.u32()).unwrap_or(0)
}

fn read_set(name: Name, attributes: Attributes<'_>) -> Option<Set> {
    let flags = set_flags(attributes);
    let known = SET_INTERVAL | SET_MAP | SET_TIMEOUT | SET_DYNAMIC | SET_CONCATENATED;
    let values = match attributes.get(6).and_then(|kind| kind.u32()) {
        _ if flags & SET_MAP == 0 => None,
        Some(DATA_VERDICT) => Some(Values::Verdict),
        kind => Some(Values::Fields(Field::of_type(kind?)?)),
    };
    let description = attributes.get(9).map(|description| description.nested());
    (flags & !known == 0).then_some(())?;
    Some(Set {
        name,
        key: Field::of_type(attributes.get(4)?.u32()?)?,
        values,
        is_interval: flags & SET_INTERVAL != 0,
        is_dynamic: flags & SET_DYNAMIC != 0,
        size: description.and_then(|d| d.get(1)).and_then(|size| size.u32()),
    })
}

fn read_elements(attributes: Attributes<'_>) -> Option<Vec<Element>> {
    let list = attributes.get(3).into_iter().flat_map(|list| list.nested());
    list.map(|element| read_element(element.nested())).collect()
}

fn read_element(attributes: Attributes<'_>) -> Option<Element> {
    let value = match attributes.get(2).map(|data| data.nested()) {
        None => None,
        Some(data) => Some(match read_value(data) {
            Some(value) => Value::Data(value),
            None => Value::Verdict(Verdict::read(data)?),
        }),
    };
    Some(Element {
        key: read_value(attributes.get(1)?.nested())?,
        end: attributes.get(10).and_then(|end| read_value(end.nested())),
        value,
        comment: attributes.get(6).and_then(|data| read_comment(data.data)),
    })
}
