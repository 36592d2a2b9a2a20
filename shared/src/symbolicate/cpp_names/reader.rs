//! A reader of mangled names: its position, the parts that it has read, and the substitution
//! candidates among them.

use std::collections::HashMap;

/// The deepest nesting of a name that is read, which is about the limit of the demangler.
const DEEPEST: u32 = 192;

/// The most steps per byte of a name. Few names need more than three; ambiguous parts could double
/// the steps at each level of nesting.
const MAX_STEPS_PER_BYTE: usize = 32;

/// A name cannot be read: it is malformed, nested too deeply, or uses an unknown production.
#[derive(Debug)]
pub(super) struct Unreadable;

pub(super) type NameResult<T> = Result<T, Unreadable>;

/// A part of a name. An index is that of a [`Node`].
#[derive(Clone, Copy, Debug)]
pub(super) enum NamePart {
    /// A range of bytes of the name.
    Text(usize, usize),
    /// A text that is not in the name.
    Instead(&'static str),
    /// A node, at its definition.
    Node(usize, NamePlace),
    /// A reference to a node that is defined elsewhere.
    Reference(usize, NamePlace),
}

/// How a node is written: `foo::bar` is `N3foo3barE` as a type, and `3foo3bar` as the start of a
/// nested name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum NamePlace {
    Type,
    Prefix,
}

/// A part of a name that may be a substitution candidate.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) parts: Vec<NamePart>,
    pub(super) kind: NodeKind,
    /// Whether it is a substitution candidate of the name that is written.
    pub(super) is_candidate: bool,
    /// Whether its meaning depends on the function that it is local to. It then cannot be written
    /// elsewhere.
    pub(super) is_local: bool,
    /// The template parameters that it mentions.
    pub(super) parameters: ParameterSet,
}

impl Node {
    /// Returns whether it is a name in another one that has the same meaning everywhere.
    pub(super) fn is_global_member(&self) -> bool {
        let is_member = matches!(
            self.kind,
            NodeKind::Name {
                is_nested: true,
                ..
            }
        );
        is_member && !self.is_local && self.parameters.all() == 0
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum NodeKind {
    /// A type that is not a name, or another part.
    Type,
    /// The type `decltype`, which a nested name may start with.
    Root,
    /// A template parameter, by its index.
    Parameter(usize),
    /// A pack expansion: `Dp` and its pattern.
    Expansion,
    /// A name with qualifiers, or that of a local entity: the name within it.
    Around(usize),
    /// The name of a module, which is not written.
    Module,
    /// A name. Its parts are the last component.
    Name {
        /// The components before the last one.
        prefix: Option<usize>,
        /// Whether it has more than one component, and so needs `N` and `E`.
        is_nested: bool,
        /// The list of template arguments that is the last component.
        arguments: Option<usize>,
    },
}

/// Template parameters, as a bit each. The last bit stands for all further ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ParameterSet {
    /// Those that are types of their own, which another type can replace.
    pub(super) types: u64,
    /// Those that are at other places, such as in expressions.
    pub(super) others: u64,
}

impl ParameterSet {
    /// The bit of all further ones.
    pub(super) const FURTHER: u64 = 1 << 63;

    /// Returns the bit of a parameter.
    pub(super) fn bit(index: usize) -> u64 {
        1 << index.min(63)
    }

    pub(super) fn all(self) -> u64 {
        self.types | self.others
    }

    /// Returns them as those of a part in which none can be replaced.
    pub(super) fn fixed(self) -> Self {
        Self {
            types: 0,
            others: self.all(),
        }
    }
}

/// What is known about a list of template arguments.
#[derive(Debug, Default)]
pub(super) struct ArgumentList {
    /// The number of arguments.
    pub(super) count: usize,
    /// The packs among them.
    pub(super) packs: Vec<ArgumentPack>,
    /// Whether they are those of a function, whose type refers to them.
    pub(super) is_of_function: bool,
    /// The parameters that the type of the function mentions, as bits.
    pub(super) mentioned: u64,
}

/// An argument that is a pack (`J…E`).
#[derive(Debug)]
pub(super) struct ArgumentPack {
    /// Its place in the list of arguments.
    pub(super) index: usize,
    /// The node that it is written as, if it is empty.
    pub(super) empty: Option<usize>,
    /// Its elements; `None` if their number is not known.
    pub(super) elements: Option<Vec<NamePart>>,
    /// Whether they are types.
    pub(super) are_types: bool,
}

impl ArgumentPack {
    /// Returns whether it, or a later argument, is that of one of these template parameters.
    pub(super) fn is_before(&self, parameters: u64) -> bool {
        parameters >> self.index.min(63) != 0
    }
}

/// What template parameters refer to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ParameterScope {
    /// Arguments that are not known.
    Unknown,
    /// The arguments of a call of a closure, which are not in the name.
    Closure,
    /// A list of arguments.
    Arguments(usize),
}

/// Reads a name by recursive descent.
pub(super) struct NameReader<'a> {
    pub(super) symbol: &'a str,
    pub(super) bytes: &'a [u8],
    pub(super) keep: Keep,
    pub(super) at: usize,
    pub(super) depth: u32,
    pub(super) steps_left: usize,
    pub(super) nodes: Vec<Node>,
    /// The substitution candidates of the name that is read.
    pub(super) candidates: Vec<usize>,
    /// The parts of what is being read. Those of the innermost unfinished node are at the end.
    pub(super) parts: Vec<NamePart>,
    /// Whether anything was removed.
    pub(super) has_changed: bool,
    /// Whether anything was changed that the demangler can read, but prints differently.
    pub(super) is_clearer: bool,
    /// The lists of template arguments that are read.
    pub(super) lists: Vec<ArgumentList>,
    pub(super) scope: ParameterScope,
    /// Whether a template parameter is mentioned whose argument is not known.
    pub(super) mentions_unknown: bool,
    /// The nodes that were copied for an element of a pack, with the list of the pack, and the
    /// copies.
    pub(super) copies: HashMap<(usize, usize, usize), usize>,
    /// The number of the first candidate about which compilers disagree.
    pub(super) first_uncertain: usize,
    /// Whether arguments after a template parameter belong to it. After `operator`, they belong to
    /// the operator.
    pub(super) takes_arguments: bool,
    /// Whether the reader is inside a part that is removed.
    pub(super) is_skipping: bool,
    /// The unfinished productions that the demangler may parse twice: see [`super::retries()`].
    retried: u32,
    /// The most of them that were unfinished at the same time.
    pub(super) most_retried: u32,
    /// The unfinished types of conversion operators.
    pub(super) conversions: u32,
    /// Whether the demangler may parse a part twice although it can read it.
    pub(super) is_ambiguous: bool,
}

/// A state that the reader can return to, if an alternative fails.
pub(super) struct Mark {
    pub(super) at: usize,
    pub(super) nodes: usize,
    pub(super) candidates: usize,
    pub(super) parts: usize,
    pub(super) lists: usize,
    pub(super) scope: ParameterScope,
    pub(super) has_changed: bool,
    pub(super) takes_arguments: bool,
    pub(super) is_skipping: bool,
}

impl<'a> NameReader<'a> {
    /// Returns a reader that takes at most this many steps.
    pub(super) fn new(symbol: &'a str, at: usize, keep: Keep, most_steps: usize) -> Self {
        Self {
            symbol,
            bytes: symbol.as_bytes(),
            keep,
            at,
            depth: 0,
            steps_left: (symbol.len() * MAX_STEPS_PER_BYTE).min(most_steps),
            nodes: Vec::new(),
            candidates: Vec::new(),
            parts: Vec::new(),
            has_changed: false,
            is_clearer: false,
            lists: Vec::new(),
            scope: ParameterScope::Unknown,
            mentions_unknown: false,
            copies: HashMap::new(),
            first_uncertain: usize::MAX,
            takes_arguments: true,
            is_skipping: false,
            retried: 0,
            most_retried: 0,
            conversions: 0,
            is_ambiguous: false,
        }
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    pub(super) fn is_next(&self, text: &str) -> bool {
        self.rest().starts_with(text.as_bytes())
    }

    pub(super) fn is_digit_next(&self) -> bool {
        self.peek().is_some_and(|byte| byte.is_ascii_digit())
    }

    /// Reads `length` bytes.
    pub(super) fn take(&mut self, length: usize) -> NameResult<()> {
        let end = self.at.checked_add(length).ok_or(Unreadable)?;
        if !self.symbol.is_char_boundary(end) {
            return Err(Unreadable);
        }
        if length > 0 {
            self.parts.push(NamePart::Text(self.at, end));
        }
        self.at = end;
        Ok(())
    }

    /// Reads a text if it is next.
    pub(super) fn take_if(&mut self, text: &str) -> NameResult<bool> {
        let is_next = self.is_next(text);
        if is_next {
            self.take(text.len())?;
        }
        Ok(is_next)
    }

    pub(super) fn expect(&mut self, text: &str) -> NameResult<()> {
        self.take_if(text)?.then_some(()).ok_or(Unreadable)
    }

    pub(super) fn take_while(&mut self, is_wanted: impl Fn(u8) -> bool) -> NameResult<()> {
        let length = self
            .rest()
            .iter()
            .take_while(|byte| is_wanted(**byte))
            .count();
        self.take(length)
    }

    /// Returns the next two characters, or an empty text.
    pub(super) fn next_two(&self) -> &'a str {
        self.symbol.get(self.at..self.at + 2).unwrap_or_default()
    }

    /// `<CV-qualifiers>`
    pub(super) fn qualifiers(&mut self) -> NameResult<()> {
        self.take_while(|byte| matches!(byte, b'r' | b'V' | b'K'))
    }

    /// `<number>`, which may be empty.
    pub(super) fn number(&mut self) -> NameResult<()> {
        self.take_if("n")?;
        self.take_while(|byte| byte.is_ascii_digit())
    }

    pub(super) fn mark(&self) -> Mark {
        Mark {
            at: self.at,
            nodes: self.nodes.len(),
            candidates: self.candidates.len(),
            parts: self.parts.len(),
            lists: self.lists.len(),
            scope: self.scope,
            has_changed: self.has_changed,
            takes_arguments: self.takes_arguments,
            is_skipping: self.is_skipping,
        }
    }

    pub(super) fn back_to(&mut self, mark: &Mark) {
        self.at = mark.at;
        self.nodes.truncate(mark.nodes);
        self.candidates.truncate(mark.candidates);
        self.parts.truncate(mark.parts);
        self.lists.truncate(mark.lists);
        self.scope = mark.scope;
        self.copies.clear();
        self.has_changed = mark.has_changed;
        self.takes_arguments = mark.takes_arguments;
        self.is_skipping = mark.is_skipping;
    }

    /// Reads a nested production, within the limits of depth and steps.
    pub(super) fn nested<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> NameResult<T>,
    ) -> NameResult<T> {
        self.steps_left = self.steps_left.checked_sub(1).ok_or(Unreadable)?;
        if self.depth == DEEPEST {
            return Err(Unreadable);
        }
        self.depth += 1;
        let read = read(self);
        self.depth -= 1;
        read
    }

    /// Reads a production that the demangler parses twice if it cannot read it.
    pub(super) fn retried<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> NameResult<T>,
    ) -> NameResult<T> {
        self.retried += 1;
        self.most_retried = self.most_retried.max(self.retried);
        let read = read(self);
        self.retried -= 1;
        read
    }

    /// Reads a part and removes it; its candidates stay known.
    pub(super) fn skip(
        &mut self,
        read: impl FnOnce(&mut Self) -> NameResult<()>,
    ) -> NameResult<()> {
        let (start, was_skipping) = (self.parts.len(), self.is_skipping);
        self.is_skipping = true;
        read(self)?;
        self.is_skipping = was_skipping;
        self.parts.truncate(start);
        self.has_changed = true;
        Ok(())
    }

    /// Replaces the parts from `since` on by a text.
    pub(super) fn replace(&mut self, since: usize, by: &'static str) {
        self.parts.truncate(since);
        self.parts.push(NamePart::Instead(by));
        self.has_changed = true;
    }

    /// Makes a node of the parts from `since` on.
    pub(super) fn node(&mut self, since: usize, kind: NodeKind) -> usize {
        let parts = self.parts.split_off(since);
        self.node_of(parts, kind)
    }

    /// Makes a node of these parts.
    pub(super) fn node_of(&mut self, parts: Vec<NamePart>, kind: NodeKind) -> usize {
        let prefix = match kind {
            NodeKind::Name { prefix, .. } => prefix,
            _ => None,
        };
        let prefix = prefix.map(|prefix| NamePart::Reference(prefix, NamePlace::Prefix));
        let mut parameters = ParameterSet::default();
        for part in parts.iter().copied().chain(prefix) {
            let mentioned = self.parameters_of(part);
            parameters.types |= mentioned.types;
            parameters.others |= mentioned.others;
        }
        self.nodes.push(Node {
            parts,
            kind,
            is_candidate: false,
            is_local: false,
            parameters,
        });
        self.nodes.len() - 1
    }

    /// Returns the template parameters that a part mentions.
    pub(super) fn parameters_of(&self, part: NamePart) -> ParameterSet {
        let (NamePart::Node(index, place) | NamePart::Reference(index, place)) = part else {
            return ParameterSet::default();
        };
        let node = &self.nodes[index];
        match (place, node.kind) {
            (NamePlace::Prefix, NodeKind::Parameter(_)) | (_, NodeKind::Expansion) => {
                node.parameters.fixed()
            }
            _ => node.parameters,
        }
    }

    /// Makes a node of the parts from `since` on, in which template parameters have a meaning of
    /// their own.
    pub(super) fn enclose(&mut self, since: usize) {
        let node = self.node(since, NodeKind::Type);
        self.nodes[node].parameters = self.nodes[node].parameters.fixed();
        self.parts.push(NamePart::Node(node, NamePlace::Type));
    }

    /// Makes a name of the parts from `since` on, which are its last component.
    pub(super) fn name_node(
        &mut self,
        since: usize,
        prefix: Option<usize>,
        is_nested: bool,
        has_arguments: bool,
    ) -> usize {
        // The last list of arguments that was read is that of this name.
        let arguments = has_arguments.then(|| self.lists.len().saturating_sub(1));
        self.node(
            since,
            NodeKind::Name {
                prefix,
                is_nested,
                arguments,
            },
        )
    }

    /// Adds a node to the candidates.
    pub(super) fn add_candidate(&mut self, node: usize) {
        self.nodes[node].is_candidate = true;
        self.candidates.push(node);
    }

    /// Replaces the parts from `since` on by a candidate that is made of them.
    pub(super) fn candidate_type(&mut self, since: usize, kind: NodeKind) {
        let node = self.node(since, kind);
        self.add_candidate(node);
        self.parts.push(NamePart::Node(node, NamePlace::Type));
    }

    /// Returns whether a node is a name in another one, without template arguments.
    pub(super) fn is_plain_member(&self, node: usize) -> bool {
        matches!(
            self.nodes[node].kind,
            NodeKind::Name {
                is_nested: true,
                arguments: None,
                ..
            }
        )
    }

    pub(super) fn is_nested_name(&self, node: usize) -> bool {
        matches!(
            self.nodes[node].kind,
            NodeKind::Name {
                is_nested: true,
                ..
            }
        )
    }
}

/// How much of a name is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::symbolicate) enum Keep {
    /// Everything that the demangler is known to support.
    Known,
    /// No expressions; they are replaced by `...`.
    Names,
}
