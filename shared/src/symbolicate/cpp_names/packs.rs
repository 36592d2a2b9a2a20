//! Packs of template arguments in mangled names.
//!
//! The demangler prints a comma before an empty pack, and all elements of a pack where the pattern
//! of a pack expansion has a single one: `int, int&&` for `Args&&...`. Therefore, empty packs are
//! left out, and a pack expansion is replaced by its pattern for each element, as long as it is
//! certain which arguments a template parameter refers to.
//!
//! A substitution candidate may contain a template parameter, and be referred to where the
//! parameter is another one's. Only the place of a reference therefore decides what it refers to.

use super::reader::{
    ArgumentPack, NamePart, NamePlace, NameReader, NameResult, NodeKind, ParameterScope,
    ParameterSet, Unreadable,
};

impl NameReader<'_> {
    /// Notes that template parameters are mentioned where the reader is, as bits.
    pub(super) fn mention(&mut self, parameters: u64) {
        if parameters == 0 || self.is_skipping {
            return;
        }
        match self.scope {
            ParameterScope::Unknown => self.mentions_unknown = true,
            ParameterScope::Closure => {}
            ParameterScope::Arguments(list) => self.lists[list].mentioned |= parameters,
        }
    }

    /// `<type>` in a list of types or template arguments, in which a pack expansion stands for any
    /// number of them.
    pub(super) fn listed_type(&mut self) -> NameResult<()> {
        let start = self.parts.len();
        let ParameterScope::Arguments(list) = self.scope else {
            return self.ty();
        };
        let mentioned = self.lists[list].mentioned;
        self.ty()?;
        let [NamePart::Node(node, _) | NamePart::Reference(node, _)] = self.parts[start..] else {
            return Ok(());
        };
        let NodeKind::Expansion = self.nodes[node].kind else {
            return Ok(());
        };
        let Some(pattern) = self.nodes[node].parts.get(1).copied() else {
            return Ok(());
        };
        let parameters = self.parameters_of(pattern);
        let Some((packs, length)) = self.expanded_packs(list, parameters) else {
            return Ok(());
        };
        self.steps_left = self.steps_left.checked_sub(length).ok_or(Unreadable)?;
        self.lists[list].mentioned = mentioned | (parameters.all() & !packs);
        self.parts.truncate(start);
        self.is_clearer = true;
        for element in 0..length {
            let part = self.pattern_of(pattern, list, element)?;
            self.parts.push(part);
        }
        Ok(())
    }

    /// `X sp <template-param> E` in a list of template arguments, a pack expansion that is replaced
    /// by the elements of the pack. Returns whether it was read.
    pub(super) fn expanded_arguments(&mut self) -> NameResult<bool> {
        let ParameterScope::Arguments(list) = self.scope else {
            return Ok(false);
        };
        if !self.is_next("XspT") {
            return Ok(false);
        }
        let (mark, mentioned) = (self.mark(), self.lists[list].mentioned);
        self.take(3)?;
        let parameter = self.template_parameter()?;
        let packs = &self.lists[list].packs;
        let elements = match self.nodes[parameter].kind {
            NodeKind::Parameter(index) => packs
                .iter()
                .find(|pack| pack.index == index)
                .and_then(|pack| pack.elements.as_ref()),
            _ => None,
        };
        if let Some(elements) = elements
            && self.is_next("E")
        {
            let elements: Vec<NamePart> = elements.iter().map(reference_to).collect();
            self.steps_left = self
                .steps_left
                .checked_sub(elements.len())
                .ok_or(Unreadable)?;
            self.at += 1;
            self.parts.truncate(mark.parts);
            self.parts.extend(elements);
            self.lists[list].mentioned = mentioned;
            self.is_clearer = true;
            return Ok(true);
        }
        self.back_to(&mark);
        Ok(false)
    }

    /// Returns whether a part is a pack expansion.
    pub(super) fn is_expansion(&self, part: NamePart) -> bool {
        match part {
            NamePart::Node(node, _) | NamePart::Reference(node, _) => {
                matches!(self.nodes[node].kind, NodeKind::Expansion)
            }
            _ => false,
        }
    }

    /// Returns the packs among template parameters, as bits, and the length of each; `None` if the
    /// pattern that mentions them cannot be written for each of their elements.
    fn expanded_packs(&self, list: usize, parameters: ParameterSet) -> Option<(u64, usize)> {
        let (mut bits, mut length) = (0, None);
        if parameters.all() & ParameterSet::FURTHER != 0 {
            return None;
        }
        for pack in &self.lists[list].packs {
            let bit = ParameterSet::bit(pack.index);
            if parameters.all() & bit == 0 {
                continue;
            }
            let elements = pack.elements.as_ref().filter(|_| pack.are_types)?;
            if length.is_some_and(|length| length != elements.len()) {
                return None;
            }
            bits |= bit;
            length = Some(elements.len());
        }
        (parameters.others & bits == 0).then_some((bits, length?))
    }

    /// Returns a part of the pattern of a pack expansion, for an element of the packs.
    fn pattern_of(&mut self, part: NamePart, list: usize, element: usize) -> NameResult<NamePart> {
        let (NamePart::Node(index, place) | NamePart::Reference(index, place)) = part else {
            return Ok(part);
        };
        let types = self.nodes[index].parameters.types;
        let packs = self.lists[list].packs.iter();
        let mut packs =
            packs.take_while(|pack| ParameterSet::bit(pack.index) < ParameterSet::FURTHER);
        let is_mentioned = |pack: &&ArgumentPack| types & ParameterSet::bit(pack.index) != 0;
        let Some(pack) = packs.find(is_mentioned) else {
            return Ok(NamePart::Reference(index, place));
        };
        if let NodeKind::Parameter(_) = self.nodes[index].kind {
            let elements = pack.elements.as_deref().unwrap_or_default();
            return elements.get(element).map(reference_to).ok_or(Unreadable);
        }
        if let Some(copy) = self.copies.get(&(index, list, element)) {
            return Ok(NamePart::Reference(*copy, place));
        }
        let copy = self.nested(|it| it.copy_of_pattern(index, list, element))?;
        self.copies.insert((index, list, element), copy);
        Ok(NamePart::Reference(copy, place))
    }

    /// Copies a node of a pattern for an element of the packs.
    fn copy_of_pattern(&mut self, node: usize, list: usize, element: usize) -> NameResult<usize> {
        let mut kind = self.nodes[node].kind;
        let (is_candidate, is_local) = (self.nodes[node].is_candidate, self.nodes[node].is_local);
        let mut parts = self.nodes[node].parts.clone();
        self.steps_left = self.steps_left.checked_sub(parts.len()).ok_or(Unreadable)?;
        if is_local {
            return Err(Unreadable);
        }
        for part in &mut parts {
            *part = self.pattern_of(*part, list, element)?;
        }
        if let NodeKind::Name {
            prefix: Some(prefix),
            ..
        } = &mut kind
        {
            let part = NamePart::Reference(*prefix, NamePlace::Prefix);
            if let NamePart::Reference(copy, _) = self.pattern_of(part, list, element)? {
                *prefix = copy;
            }
        }
        let copy = self.node_of(parts, kind);
        self.nodes[copy].is_candidate = is_candidate;
        Ok(copy)
    }

    /// Forgets the template parameters that a function's type mentions so far, and returns them.
    pub(super) fn forget_mentioned(&mut self) -> u64 {
        match self.scope {
            ParameterScope::Arguments(list) => std::mem::take(&mut self.lists[list].mentioned),
            _ => 0,
        }
    }

    /// Returns whether an empty pack could be left out if a function had no return type, which is
    /// not printed; otherwise the template parameters that the return type mentions are noted.
    pub(super) fn is_return_type_in_the_way(&mut self, list: usize, returned: u64) -> bool {
        let list = &mut self.lists[list];
        let (mentioned, all) = (list.mentioned, list.mentioned | returned);
        let is_in_the_way = list.packs.iter().any(|pack| {
            list.count > 1
                && pack.empty.is_some()
                && pack.is_before(all)
                && !pack.is_before(mentioned)
        });
        if !is_in_the_way {
            list.mentioned = all;
        }
        is_in_the_way
    }

    /// Leaves out the empty packs that no template parameter refers to, and that are before no
    /// argument that one refers to.
    pub(super) fn leave_out_empty_packs(&mut self) {
        for list in &self.lists {
            let mut left = list.count;
            for pack in &list.packs {
                let is_needed = list.is_of_function
                    && (self.mentions_unknown || pack.is_before(list.mentioned));
                if let Some(node) = pack.empty
                    && left > 1
                    && !is_needed
                {
                    self.nodes[node].parts.clear();
                    self.is_clearer = true;
                    left -= 1;
                }
            }
        }
    }
}

/// Returns a part as one that is defined elsewhere.
fn reference_to(part: &NamePart) -> NamePart {
    match *part {
        NamePart::Node(index, place) => NamePart::Reference(index, place),
        part => part,
    }
}
