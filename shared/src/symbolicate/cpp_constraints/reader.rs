//! A reader of mangled names: where it is, the parts that it has read, and the substitution candidates among them.

use super::Keep;

/// The deepest nesting of a name that is read. The demangler stops at about as much.
const DEEPEST: u32 = 192;

/// The most steps that are taken for each byte of a name. Few names need more than three; what may be read in two ways would
/// double them at each level of nesting.
const MOST_STEPS_PER_BYTE: usize = 32;

/// A name cannot be read: it is malformed, nests too deep, or has what is not known here.
#[derive(Debug)]
pub(super) struct Unreadable;

pub(super) type NameResult<T> = Result<T, Unreadable>;

/// A part of a name. An index is that of a [`Node`].
#[derive(Clone, Copy, Debug)]
pub(super) enum NamePart {
    /// What stands in the name, from one byte to another.
    Text(usize, usize),
    /// What does not.
    Instead(&'static str),
    /// A node where it is defined.
    Node(usize, NamePlace),
    /// A node that stands elsewhere.
    Reference(usize, NamePlace),
}

/// Where a node is written: `foo::bar` is `N3foo3barE` as a type, and `3foo3bar` as the start of a nested name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum NamePlace {
    Type,
    Prefix,
}

/// A part of a name that may be a candidate.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) parts: Vec<NamePart>,
    pub(super) kind: NodeKind,
    /// Whether it is a substitution candidate of the name that is written.
    pub(super) is_candidate: bool,
    /// Whether its meaning depends on the function that it is local to: it cannot be written elsewhere.
    pub(super) is_local: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum NodeKind {
    /// A type of any kind that is not a name.
    Type,
    /// A template parameter or `decltype`: a type, and the start of a nested name.
    Root,
    /// A name, of which the parts are the last component.
    Name {
        /// What is before that component.
        prefix: Option<usize>,
        /// Whether it has more than one component, and so needs `N` and `E`.
        is_nested: bool,
        /// Whether that component is template arguments.
        has_arguments: bool,
    },
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
    /// The parts of what is being read; those of a node that is read last are at the end.
    pub(super) parts: Vec<NamePart>,
    /// Whether anything was taken off.
    pub(super) has_changed: bool,
    /// Whether a template parameter is followed by the arguments of a template; not after `operator`, where they are
    /// the arguments of the operator.
    pub(super) takes_arguments: bool,
    /// Within what is taken off.
    pub(super) is_skipping: bool,
}

/// What a reader returns to where something turns out to be something else.
pub(super) struct Mark {
    pub(super) at: usize,
    pub(super) nodes: usize,
    pub(super) candidates: usize,
    pub(super) parts: usize,
    pub(super) has_changed: bool,
    pub(super) takes_arguments: bool,
    pub(super) is_skipping: bool,
}

impl<'a> NameReader<'a> {
    pub(super) fn new(symbol: &'a str, at: usize, keep: Keep) -> Self {
        Self {
            symbol,
            bytes: symbol.as_bytes(),
            keep,
            at,
            depth: 0,
            steps_left: symbol.len() * MOST_STEPS_PER_BYTE,
            nodes: Vec::new(),
            candidates: Vec::new(),
            parts: Vec::new(),
            has_changed: false,
            takes_arguments: true,
            is_skipping: false,
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

    /// Reads so many bytes.
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

    /// Reads a text if it is there.
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

    /// The next two characters, or nothing.
    pub(super) fn next_two(&self) -> &'a str {
        self.symbol.get(self.at..self.at + 2).unwrap_or_default()
    }

    /// `<CV-qualifiers>`
    pub(super) fn qualifiers(&mut self) -> NameResult<()> {
        self.take_while(|byte| matches!(byte, b'r' | b'V' | b'K'))
    }

    /// `<number>`, or nothing.
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
        self.has_changed = mark.has_changed;
        self.takes_arguments = mark.takes_arguments;
        self.is_skipping = mark.is_skipping;
    }

    /// Reads what nests.
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

    /// Reads what is taken off; its candidates remain known.
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

    /// Writes something else than the parts since.
    pub(super) fn replace(&mut self, since: usize, by: &'static str) {
        self.parts.truncate(since);
        self.parts.push(NamePart::Instead(by));
        self.has_changed = true;
    }

    /// Makes a node of the parts since.
    pub(super) fn node(&mut self, since: usize, kind: NodeKind) -> usize {
        let parts = self.parts.split_off(since);
        self.nodes.push(Node {
            parts,
            kind,
            is_candidate: false,
            is_local: false,
        });
        self.nodes.len() - 1
    }

    /// Makes a name of the parts since, which are its last component.
    pub(super) fn name_node(
        &mut self,
        since: usize,
        prefix: Option<usize>,
        is_nested: bool,
        has_arguments: bool,
    ) -> usize {
        self.node(
            since,
            NodeKind::Name {
                prefix,
                is_nested,
                has_arguments,
            },
        )
    }

    /// Numbers a node.
    pub(super) fn add_candidate(&mut self, node: usize) {
        self.nodes[node].is_candidate = true;
        self.candidates.push(node);
    }

    /// Makes a candidate of the parts since, and puts it in their place.
    pub(super) fn candidate_type(&mut self, since: usize, kind: NodeKind) {
        let node = self.node(since, kind);
        self.add_candidate(node);
        self.parts.push(NamePart::Node(node, NamePlace::Type));
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
