//! Names and templates in mangled names, by the productions of the grammar.

use super::reader::{
    ArgumentList, ArgumentPack, NamePart, NamePlace, NameReader, NameResult, NodeKind,
    ParameterScope, ParameterSet, Unreadable,
};

/// The replacement of the operator `co_await`, which the demangler does not support: a function of
/// this name.
const CO_AWAIT: &str = "17operator_co_await";

/// The operators that can be functions, without those that contain another name.
pub(super) const OPERATORS: &str = "nw na dl da ps ng ad de co pl mi ml dv rm an or eo aS pL mI mL dV rM aN oR eO ls rs lS rS eq ne lt gt \
                         le ge ss nt aa oo pp mm cm pm pt cl ix qu ds";

impl NameReader<'_> {
    /// `<name>`, at its definition.
    pub(super) fn name_part(&mut self, is_local: bool) -> NameResult<()> {
        let name = self.name(is_local)?;
        self.parts.push(NamePart::Node(name, NamePlace::Type));
        Ok(())
    }

    /// `<name>`, which is local if it belongs to a function.
    pub(super) fn name(&mut self, is_local: bool) -> NameResult<usize> {
        self.nested(|it| match it.peek() {
            Some(b'N') => it.nested_name(is_local),
            Some(b'Z') => it.local_name(),
            Some(b'S') if !it.is_next("St") => {
                let start = it.parts.len();
                let prefix = it.substitution()?;
                if it.is_module(prefix) {
                    it.parts.truncate(start);
                    return it.unscoped_name(is_local);
                }
                it.arguments_of(start, prefix)
            }
            _ => it.unscoped_name(is_local),
        })
    }

    /// `<unscoped-name>`, `<unscoped-template-name> <template-args>`
    pub(super) fn unscoped_name(&mut self, is_local: bool) -> NameResult<usize> {
        let start = self.parts.len();
        self.take_if("St")?;
        self.unqualified_name()?;
        let name = self.name_node(start, None, false, false);
        self.nodes[name].is_local = is_local;
        if self.peek() != Some(b'I') {
            return Ok(name);
        }
        self.add_candidate(name);
        self.parts.push(NamePart::Node(name, NamePlace::Prefix));
        self.arguments_of(start, Some(name))
    }

    /// `<template-args>` after a prefix, which is in the parts from `since` on, and is a node if it
    /// is a candidate.
    pub(super) fn arguments_of(
        &mut self,
        since: usize,
        prefix: Option<usize>,
    ) -> NameResult<usize> {
        if prefix.is_some() {
            self.parts.truncate(since);
        }
        self.template_arguments()?;
        let is_nested = prefix.is_some_and(|prefix| self.is_nested_name(prefix));
        let name = self.name_node(since, prefix, is_nested, true);
        self.nodes[name].is_local = prefix.is_some_and(|prefix| self.nodes[prefix].is_local);
        Ok(name)
    }

    /// `<substitution>` except `St`. Returns the candidate that it refers to; `None` for `Sa` and
    /// similar ones.
    pub(super) fn substitution(&mut self) -> NameResult<Option<usize>> {
        if let [b'S', b'a' | b'b' | b's' | b'i' | b'o' | b'd', ..] = self.rest() {
            self.take(2)?;
            return Ok(None);
        }
        let rest = self.rest().strip_prefix(b"S").ok_or(Unreadable)?;
        let length = rest
            .iter()
            .position(|byte| *byte == b'_')
            .ok_or(Unreadable)?;
        let mut number = 0_usize;
        for digit in &rest[..length] {
            let digit = match digit {
                b'0'..=b'9' => digit - b'0',
                b'A'..=b'Z' => digit - b'A' + 10,
                _ => return Err(Unreadable),
            };
            number = number
                .checked_mul(36)
                .and_then(|number| number.checked_add(usize::from(digit)))
                .ok_or(Unreadable)?;
        }
        let number = match length {
            0 => 0,
            _ => number.checked_add(1).ok_or(Unreadable)?,
        };
        let candidate = *self.candidates.get(number).ok_or(Unreadable)?;
        if number >= self.first_uncertain {
            return Err(Unreadable);
        }
        self.mention(self.nodes[candidate].parameters.all());
        self.at += length + 2;
        self.parts
            .push(NamePart::Reference(candidate, NamePlace::Prefix));
        Ok(Some(candidate))
    }

    /// `<nested-name>`. Its last component is not a candidate yet.
    fn nested_name(&mut self, is_local: bool) -> NameResult<usize> {
        let outside = self.parts.len();
        self.expect("N")?;
        let qualified = self.parts.len();
        if !self.take_if("H")? {
            self.qualifiers()?;
            if matches!(self.peek(), Some(b'R' | b'O')) {
                self.take(1)?;
            }
        }
        let is_qualified = self.parts.len() > qualified;
        let start = self.parts.len();
        // The last node, and whether it has a number already.
        let mut last: Option<usize> = None;
        let mut is_numbered = true;
        while !self.take_if("E")? {
            self.steps_left = self.steps_left.checked_sub(1).ok_or(Unreadable)?;
            if let Some(last) = last.filter(|_| !is_numbered) {
                self.add_candidate(last);
            }
            let is_member = last.is_some_and(|last| !is_numbered && self.is_plain_member(last));
            is_numbered = false;
            // Parts that are no candidates by themselves precede the first component.
            let has_text = self.parts.len() > start;
            let node = match self.rest() {
                [b'S', b't', ..] if last.is_none() && !has_text => {
                    // `std::foo` needs no `N`.
                    self.take(2)?;
                    self.unqualified_name()?;
                    self.name_node(start, None, false, false)
                }
                [b'S', ..] if last.is_none() && !has_text => {
                    is_numbered = true;
                    match self.substitution()? {
                        None => continue,
                        module if self.is_module(module) => {
                            self.parts.truncate(start);
                            is_numbered = false;
                            self.unqualified_name()?;
                            self.name_node(start, None, false, false)
                        }
                        Some(node) => {
                            self.parts.truncate(start);
                            node
                        }
                    }
                }
                [b'T', ..] if last.is_none() && !has_text => self.template_parameter()?,
                [b'D', b't' | b'T', ..] if last.is_none() && !has_text => {
                    self.decltype()?;
                    self.node(start, NodeKind::Root)
                }
                [b'I', ..] if last.is_some() || has_text => {
                    self.template_arguments()?;
                    let is_nested = last.is_some_and(|last| self.is_nested_name(last));
                    self.name_node(start, last, is_nested, true)
                }
                _ => {
                    let is_nested = last.is_some() || has_text;
                    // The initializer of a variable: the following components are inside it. The
                    // demangler knows those of members only, which are no templates.
                    if last.is_some() && self.peek() == Some(b'M') {
                        if is_member {
                            self.take(1)?;
                        } else {
                            self.skip(|reader| reader.take(1))?;
                        }
                    }
                    self.unqualified_name()?;
                    self.name_node(start, last, is_nested, false)
                }
            };
            if let NodeKind::Name { .. } = self.nodes[node].kind
                && last != Some(node)
                && !is_numbered
            {
                self.nodes[node].is_local = is_local;
            }
            last = Some(node);
        }
        let last = last.ok_or(Unreadable)?;
        if !is_qualified {
            self.parts.truncate(outside);
            return Ok(last);
        }
        self.parts.truncate(start);
        self.parts.push(NamePart::Node(last, NamePlace::Prefix));
        self.parts.push(NamePart::Instead("E"));
        Ok(self.node(outside, NodeKind::Around(last)))
    }

    /// `<local-name>`
    fn local_name(&mut self) -> NameResult<usize> {
        let start = self.parts.len();
        self.expect("Z")?;
        self.encoding()?;
        self.expect("E")?;
        if self.take_if("s")? {
            self.discriminator()?;
            return Ok(self.node(start, NodeKind::Type));
        }
        if self.take_if("d")? {
            self.number()?;
            self.expect("_")?;
        }
        let name = self.name(true)?;
        self.parts.push(NamePart::Node(name, NamePlace::Type));
        self.discriminator()?;
        Ok(self.node(start, NodeKind::Around(name)))
    }

    /// `[<discriminator>]`
    fn discriminator(&mut self) -> NameResult<()> {
        match self.rest() {
            [b'_', b'0'..=b'9', ..] => self.take(2),
            [b'_', b'_', b'0'..=b'9', ..] => {
                self.take(2)?;
                self.number()?;
                self.expect("_")
            }
            _ => Ok(()),
        }
    }

    /// `<unqualified-name>`
    fn unqualified_name(&mut self) -> NameResult<()> {
        self.module()?;
        if self.is_next("F") {
            // A friend with constraints that depend on the template parameters of the class.
            self.skip(|it| it.expect("F"))?;
        }
        self.take_if("L")?;
        match self.next_two() {
            _ if self.is_digit_next() => self.source_name()?,
            "Ut" => {
                self.take(2)?;
                self.number()?;
                self.expect("_")?;
            }
            "Ul" => {
                self.take(2)?;
                let start = self.parts.len();
                self.retried(Self::closure)?;
                self.enclose(start);
            }
            "CI" => self.inherited_constructor()?,
            "DC" => {
                self.take(2)?;
                while !self.take_if("E")? {
                    self.source_name()?;
                }
            }
            two if is_one_of("C1 C2 C3 C4 C5 D0 D1 D2 D4 D5", two) => self.take(2)?,
            _ => self.operator_name()?,
        }
        while self.take_if("B")? {
            self.source_name()?;
        }
        Ok(())
    }

    /// `CI <digit> <type>`, a constructor that a class inherits from another one.
    fn inherited_constructor(&mut self) -> NameResult<()> {
        self.take(3)?;
        let known = self.candidates.len();
        self.retried(Self::ty)?;
        // For the demangler and GCC, the other class is a candidate, for clang it is none.
        if self.candidates.len() > known {
            self.first_uncertain = self.first_uncertain.min(self.candidates.len() - 1);
        }
        Ok(())
    }

    /// `<source-name>`
    pub(super) fn source_name(&mut self) -> NameResult<()> {
        let digits = self
            .rest()
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let length: usize = self.symbol[self.at..self.at + digits]
            .parse()
            .map_err(|_| Unreadable)?;
        if length == 0 {
            return Err(Unreadable);
        }
        self.take(digits.checked_add(length).ok_or(Unreadable)?)
    }

    /// `<closure-type-name>` after `Ul`.
    fn closure(&mut self) -> NameResult<()> {
        self.nested(|it| {
            let scope = std::mem::replace(&mut it.scope, ParameterScope::Closure);
            it.template_parameter_declarations()?;
            it.constraint()?;
            while !matches!(it.peek(), Some(b'E' | b'Q')) {
                it.ty()?;
            }
            it.constraint()?;
            it.scope = scope;
            it.expect("E")?;
            it.number()?;
            it.expect("_")
        })
    }

    /// `<operator-name>`
    pub(super) fn operator_name(&mut self) -> NameResult<()> {
        let start = self.parts.len();
        let operator = self.next_two();
        self.take(2)?;
        match operator {
            "cv" => self.type_of_conversion(),
            "li" => self.source_name(),
            "aw" => {
                self.replace(start, CO_AWAIT);
                Ok(())
            }
            _ if operator.starts_with('v') => self.source_name(),
            _ if is_one_of(OPERATORS, operator) => Ok(()),
            _ => Err(Unreadable),
        }
    }

    /// `<template-args>`
    pub(super) fn template_arguments(&mut self) -> NameResult<()> {
        self.retried(Self::template_arguments_once)
    }

    fn template_arguments_once(&mut self) -> NameResult<()> {
        self.expect("I")?;
        let takes_arguments = std::mem::replace(&mut self.takes_arguments, true);
        let (mut list, at) = (ArgumentList::default(), self.at);
        while !matches!(self.peek(), Some(b'E' | b'Q')) {
            let start = self.parts.len();
            let pack = self.template_argument()?;
            list.packs.extend(pack.map(|pack| ArgumentPack {
                index: list.count,
                ..pack
            }));
            // A pack expansion may have no elements.
            list.count += usize::from(self.parts.len() > start);
        }
        if list.count == 0 && self.at > at {
            self.parts.push(NamePart::Instead("JE"));
        }
        self.takes_arguments = takes_arguments;
        self.constraint()?;
        self.expect("E")?;
        self.lists.push(list);
        Ok(())
    }

    /// `<template-arg>`, with the declaration of its parameter. Returns a pack.
    pub(super) fn template_argument(&mut self) -> NameResult<Option<ArgumentPack>> {
        self.nested(|it| {
            it.template_parameter_declarations()?;
            match it.peek() {
                Some(b'X') => {
                    if !it.expanded_arguments()? {
                        it.take(1)?;
                        it.expression()?;
                        it.expect("E")?;
                    }
                }
                Some(b'L') => it.literal()?,
                Some(b'J') => return it.argument_pack().map(Some),
                _ => it.listed_type()?,
            }
            Ok(None)
        })
    }

    /// `J <template-arg>* E`
    fn argument_pack(&mut self) -> NameResult<ArgumentPack> {
        let start = self.parts.len();
        self.expect("J")?;
        let first = self.parts.len();
        let (mut elements, mut are_types) = (Some(Vec::new()), true);
        while self.peek() != Some(b'E') {
            let element = self.parts.len();
            // A pack expansion may be several elements.
            let is_one = !matches!(self.rest(), [b'X' | b'J', ..] | [b'D', b'p', ..]);
            let is_literal = self.peek() == Some(b'L');
            self.template_argument()?;
            if is_literal {
                are_types = false;
                let node = self.node(element, NodeKind::Type);
                self.parts.push(NamePart::Node(node, NamePlace::Type));
            }
            match (&mut elements, &self.parts[element..]) {
                (Some(elements), [part]) if is_one && !self.is_expansion(*part) => {
                    elements.push(*part);
                }
                _ => elements = None,
            }
        }
        let is_empty = self.parts.len() == first;
        self.expect("E")?;
        let empty = is_empty.then(|| {
            let node = self.node(start, NodeKind::Type);
            self.parts.push(NamePart::Node(node, NamePlace::Type));
            node
        });
        Ok(ArgumentPack {
            index: 0,
            empty,
            elements,
            are_types,
        })
    }

    /// `<template-arg>* E`
    pub(super) fn template_arguments_to_end(&mut self) -> NameResult<()> {
        while !self.take_if("E")? {
            self.template_argument()?;
        }
        Ok(())
    }

    /// `<template-param-decl>*`, which are removed.
    fn template_parameter_declarations(&mut self) -> NameResult<()> {
        while let [b'T', b'y' | b'k' | b'n' | b't' | b'p', ..] = self.rest() {
            self.skip(Self::template_parameter_declaration)?;
        }
        Ok(())
    }

    /// `<template-param-decl>`
    fn template_parameter_declaration(&mut self) -> NameResult<()> {
        self.nested(|it| {
            let takes_arguments = std::mem::replace(&mut it.takes_arguments, true);
            let kind = it.rest().get(1).copied();
            it.take(2)?;
            match kind {
                Some(b'y') => {}
                Some(b'k') => it.name_part(false)?,
                Some(b'n') => it.ty()?,
                Some(b'p') => it.template_parameter_declaration()?,
                Some(b't') => {
                    while !matches!(it.peek(), Some(b'E' | b'Q')) {
                        it.template_parameter_declaration()?;
                    }
                    it.constraint()?;
                    it.expect("E")?;
                }
                _ => return Err(Unreadable),
            }
            it.takes_arguments = takes_arguments;
            Ok(())
        })
    }

    /// `<template-param>`. One of an outer template, with a level, is supported only in a removed
    /// part.
    pub(super) fn template_parameter(&mut self) -> NameResult<usize> {
        let start = self.parts.len();
        self.expect("T")?;
        if self.take_if("L")? {
            if !self.is_skipping {
                return Err(Unreadable);
            }
            self.number()?;
            self.expect("_")?;
        }
        let digits = self.at;
        self.number()?;
        let index = match &self.symbol[digits..self.at] {
            "" => 0,
            number => number
                .parse()
                .map_or(usize::MAX, |number: usize| number.saturating_add(1)),
        };
        self.expect("_")?;
        // Inside of a conversion operator, the demangler looks ahead at the arguments.
        if self.conversions > 0 && self.takes_arguments && self.peek() == Some(b'I') {
            self.is_ambiguous = true;
        }
        let node = self.node(start, NodeKind::Parameter(index));
        self.nodes[node].parameters.types = ParameterSet::bit(index);
        self.mention(ParameterSet::bit(index));
        Ok(node)
    }

    /// `<template-param>` as an expression, which is not a candidate.
    pub(super) fn parameter_in_expression(&mut self) -> NameResult<()> {
        let node = self.template_parameter()?;
        self.nodes[node].parameters = self.nodes[node].parameters.fixed();
        self.parts.push(NamePart::Node(node, NamePlace::Type));
        Ok(())
    }
}

/// Returns whether a list contains an operator.
pub(super) fn is_one_of(operators: &str, operator: &str) -> bool {
    operators.split(' ').any(|one| one == operator)
}
