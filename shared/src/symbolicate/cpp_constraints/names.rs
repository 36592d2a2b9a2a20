//! Names and templates in mangled names, by the productions of the grammar.

use super::reader::{NamePart, NamePlace, NameReader, NameResult, NodeKind, Unreadable};

/// The replacement of a template parameter object, which the demangler does not support: a template
/// of this name, with the object as its argument.
const OBJECT: &str = "25template_parameter_object";

/// The replacement of the operator `co_await`, which the demangler does not support: a function of
/// this name.
const CO_AWAIT: &str = "17operator_co_await";

/// The operators that can be functions, without those that contain another name.
pub(super) const OPERATORS: &str = "nw na dl da ps ng ad de co pl mi ml dv rm an or eo aS pL mI mL dV rM aN oR eO ls rs lS rS eq ne lt gt \
                         le ge ss nt aa oo pp mm cm pm pt cl ix qu ds";

impl NameReader<'_> {
    /// Reads the whole name, including suffixes of a compiler or a linker.
    pub(super) fn whole(&mut self) -> NameResult<Vec<NamePart>> {
        self.unconstrained_encoding()?;
        let mark = self.mark();
        if self.constraint().is_err() {
            // Nothing refers to the last part, so it can be removed even if it cannot be read.
            self.back_to(&mark);
            self.at = self.bytes.len();
            self.has_changed = true;
        }
        match self.peek() {
            None => {}
            Some(b'.' | b'_' | b'@') => self.take(self.bytes.len() - self.at)?,
            Some(_) => return Err(Unreadable),
        }
        Ok(std::mem::take(&mut self.parts))
    }

    /// `<encoding>`
    pub(super) fn encoding(&mut self) -> NameResult<()> {
        self.unconstrained_encoding()?;
        self.constraint()
    }

    /// `<encoding>` up to the constraint of the function.
    fn unconstrained_encoding(&mut self) -> NameResult<()> {
        self.nested(|it| {
            if matches!(it.peek(), Some(b'T' | b'G')) {
                return it.special_name();
            }
            it.name_part(false)?;
            while !matches!(it.peek(), None | Some(b'E' | b'.' | b'_' | b'@' | b'Q')) {
                it.ty()?;
            }
            Ok(())
        })
    }

    /// `[Q <constraint-expression>]`
    fn constraint(&mut self) -> NameResult<()> {
        match self.peek() {
            Some(b'Q') => self.skip(|it| {
                it.expect("Q")?;
                it.expression()
            }),
            _ => Ok(()),
        }
    }

    /// `<special-name>`
    fn special_name(&mut self) -> NameResult<()> {
        let start = self.parts.len();
        if self.take_if("TA")? {
            // The demangler does not support it: it is written as a name with a template argument.
            self.replace(start, OBJECT);
            self.parts.push(NamePart::Instead("I"));
            self.template_argument()?;
            self.parts.push(NamePart::Instead("E"));
            return Ok(());
        }
        for prefix in ["TV", "TT", "TI", "TS", "TF"] {
            if self.take_if(prefix)? {
                return self.ty();
            }
        }
        if self.take_if("TC")? {
            self.ty()?;
            self.number()?;
            self.expect("_")?;
            return self.ty();
        }
        if self.take_if("GR")? {
            self.name_part(false)?;
            self.take_while(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())?;
            return self.expect("_");
        }
        for prefix in ["TH", "TW", "GV"] {
            if self.take_if(prefix)? {
                return self.name_part(false);
            }
        }
        if self.take_if("GTt")? || self.take_if("GTn")? {
            return self.encoding();
        }
        if self.take_if("Tc")? {
            self.call_offset()?;
        } else {
            self.expect("T")?;
        }
        self.call_offset()?;
        self.encoding()
    }

    /// `<call-offset>`
    fn call_offset(&mut self) -> NameResult<()> {
        if self.take_if("h")? {
            self.number()?;
        } else {
            self.expect("v")?;
            self.number()?;
            self.expect("_")?;
            self.number()?;
        }
        self.expect("_")
    }

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
                it.arguments_of(start, prefix)
            }
            _ => {
                let start = it.parts.len();
                it.take_if("St")?;
                it.unqualified_name()?;
                let name = it.name_node(start, None, false, false);
                it.nodes[name].is_local = is_local;
                if it.peek() != Some(b'I') {
                    return Ok(name);
                }
                it.add_candidate(name);
                it.parts.push(NamePart::Node(name, NamePlace::Prefix));
                it.arguments_of(start, Some(name))
            }
        })
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
                        Some(node) => {
                            self.parts.truncate(start);
                            node
                        }
                    }
                }
                [b'T', ..] if last.is_none() && !has_text => {
                    self.template_parameter()?;
                    self.node(start, NodeKind::Root)
                }
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
        Ok(self.node(outside, NodeKind::Type))
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
        self.name_part(true)?;
        self.discriminator()?;
        Ok(self.node(start, NodeKind::Type))
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
                self.retried(Self::closure)?;
            }
            // An inherited constructor: clang and GCC disagree on whether its class is a candidate.
            "CI" => return Err(Unreadable),
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
            it.template_parameter_declarations()?;
            it.constraint()?;
            while !matches!(it.peek(), Some(b'E' | b'Q')) {
                it.ty()?;
            }
            it.constraint()?;
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
        while !matches!(self.peek(), Some(b'E' | b'Q')) {
            self.template_argument()?;
        }
        self.takes_arguments = takes_arguments;
        self.constraint()?;
        self.expect("E")
    }

    /// `<template-arg>`, with the declaration of its parameter.
    fn template_argument(&mut self) -> NameResult<()> {
        self.nested(|it| {
            it.template_parameter_declarations()?;
            match it.peek() {
                Some(b'X') => {
                    it.take(1)?;
                    it.expression()?;
                    it.expect("E")
                }
                Some(b'L') => it.literal(),
                Some(b'J') => {
                    it.take(1)?;
                    it.template_arguments_to_end()
                }
                _ => it.ty(),
            }
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
    pub(super) fn template_parameter(&mut self) -> NameResult<()> {
        self.expect("T")?;
        if self.take_if("L")? {
            if !self.is_skipping {
                return Err(Unreadable);
            }
            self.number()?;
            self.expect("_")?;
        }
        self.number()?;
        self.expect("_")?;
        // Inside of a conversion operator, the demangler looks ahead at the arguments.
        if self.conversions > 0 && self.takes_arguments && self.peek() == Some(b'I') {
            self.is_ambiguous = true;
        }
        Ok(())
    }
}

/// Returns whether a list contains an operator.
pub(super) fn is_one_of(operators: &str, operator: &str) -> bool {
    operators.split(' ').any(|one| one == operator)
}
