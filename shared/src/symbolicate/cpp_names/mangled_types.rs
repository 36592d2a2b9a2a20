//! Types in mangled names, by the productions of the grammar.

use super::names::is_one_of;
use super::reader::{NamePart, NamePlace, NameReader, NameResult, NodeKind, Unreadable};

impl NameReader<'_> {
    /// `<type>`
    pub(super) fn ty(&mut self) -> NameResult<()> {
        self.nested(Self::ty_at_this_depth)
    }

    fn ty_at_this_depth(&mut self) -> NameResult<()> {
        let start = self.parts.len();
        let first = self.peek().ok_or(Unreadable)?;
        match first {
            _ if b"vwbcahstijlmxynofdegz".contains(&first) => return self.take(1),
            b'u' => {
                self.take(1)?;
                self.source_name()?;
                if self.peek() == Some(b'I') {
                    return self.transformed_type(start);
                }
            }
            b'r' | b'V' | b'K' => self.qualified_type()?,
            b'U' if self.rest().get(1).is_some_and(u8::is_ascii_digit) => self.qualified_type()?,
            b'P' | b'R' | b'O' | b'C' | b'G' => {
                self.take(1)?;
                self.ty()?;
            }
            b'F' => self.function_type()?,
            b'A' => {
                self.take(1)?;
                if self.peek() != Some(b'_') {
                    self.number_or_expression()?;
                }
                self.expect("_")?;
                self.ty()?;
            }
            b'M' => {
                self.take(1)?;
                self.ty()?;
                self.ty()?;
            }
            b'D' => return self.type_after_d(start),
            b'T' if is_one_of("Ts Tu Te", self.next_two()) => {
                self.take(2)?;
                self.name_part(false)?;
            }
            b'T' => {
                let node = self.template_parameter()?;
                self.add_candidate(node);
                if self.takes_arguments && self.peek() == Some(b'I') {
                    let name = self.arguments_of(start, Some(node))?;
                    self.add_candidate(name);
                    self.parts.push(NamePart::Node(name, NamePlace::Type));
                } else {
                    self.parts.push(NamePart::Node(node, NamePlace::Type));
                }
                return Ok(());
            }
            b'S' if !self.is_next("St") => return self.substituted_type(start),
            _ => {
                let name = self.name(false)?;
                self.add_candidate(name);
                self.parts.push(NamePart::Node(name, NamePlace::Type));
                return Ok(());
            }
        }
        self.candidate_type(start, NodeKind::Type);
        Ok(())
    }

    /// `<type>` that starts with `D`.
    fn type_after_d(&mut self, start: usize) -> NameResult<()> {
        match self.next_two() {
            "DF" => {
                self.take(2)?;
                self.number()?;
                return match self.peek() {
                    Some(b'_' | b'x' | b'b') => self.take(1),
                    _ => Err(Unreadable),
                };
            }
            "DB" | "DU" => {
                self.take(2)?;
                self.number_or_expression()?;
                return self.expect("_");
            }
            placeholder @ ("Dk" | "DK") => {
                self.skip(|it| {
                    it.take(2)?;
                    it.name_part(false)
                })?;
                let unconstrained = if placeholder == "Dk" { "Da" } else { "Dc" };
                self.parts.push(NamePart::Instead(unconstrained));
                return Ok(());
            }
            "Dt" | "DT" => {
                self.decltype()?;
                self.candidate_type(start, NodeKind::Root);
                return Ok(());
            }
            "Dv" => {
                self.take(2)?;
                self.take_if("_")?;
                self.number_or_expression()?;
                self.expect("_")?;
                self.ty()?;
            }
            "Dp" => {
                self.take(2)?;
                self.ty()?;
                self.candidate_type(start, NodeKind::Expansion);
                return Ok(());
            }
            "Do" | "DO" | "Dw" | "Dx" => self.function_type()?,
            builtin if is_one_of("Dd De Df Dh Di Ds Du Da Dc Dn", builtin) => return self.take(2),
            _ => return Err(Unreadable),
        }
        self.candidate_type(start, NodeKind::Type);
        Ok(())
    }

    fn number_or_expression(&mut self) -> NameResult<()> {
        if self.is_digit_next() {
            self.number()
        } else {
            self.expression()
        }
    }

    /// The type of a conversion: template arguments after it belong to the operator.
    pub(super) fn type_of_conversion(&mut self) -> NameResult<()> {
        let takes_arguments = std::mem::replace(&mut self.takes_arguments, false);
        self.conversions += 1;
        // The demangler may parse it three times: after `St` as another type, too.
        let read = self.retried(|it| it.retried(Self::ty));
        self.conversions -= 1;
        read?;
        self.takes_arguments = takes_arguments;
        Ok(())
    }

    /// `u <source-name> <template-args>`, a type transformation of the compiler (`__remove_cv`).
    /// For the demangler it is a template, which has an additional candidate: the template without
    /// its arguments.
    fn transformed_type(&mut self, start: usize) -> NameResult<()> {
        let Some(NamePart::Text(_, end)) = self.parts.pop() else {
            return Err(Unreadable);
        };
        let Some(NamePart::Text(_, begin)) = self.parts.get(start).copied() else {
            return Err(Unreadable);
        };
        self.parts.truncate(start);
        self.parts.push(NamePart::Text(begin, end));
        self.has_changed = true;
        let template = self.name_node(start, None, false, false);
        self.nodes[template].is_candidate = true;
        let transformed = self.arguments_of(start, Some(template))?;
        self.add_candidate(transformed);
        self.parts
            .push(NamePart::Node(transformed, NamePlace::Type));
        Ok(())
    }

    /// `<type>` that starts with a substitution.
    fn substituted_type(&mut self, start: usize) -> NameResult<()> {
        let prefix = self.substitution()?;
        if self.is_module(prefix) {
            self.parts.truncate(start);
            let name = self.unscoped_name(false)?;
            self.add_candidate(name);
            self.parts.push(NamePart::Node(name, NamePlace::Type));
            return Ok(());
        }
        // After `operator`, only a template can have arguments of its own.
        let takes_arguments = self.takes_arguments
            || prefix.is_none_or(|prefix| {
                matches!(
                    self.nodes[prefix].kind,
                    NodeKind::Name {
                        arguments: None,
                        ..
                    }
                )
            });
        if takes_arguments && self.peek() == Some(b'I') {
            let name = self.arguments_of(start, prefix)?;
            self.add_candidate(name);
            self.parts.push(NamePart::Node(name, NamePlace::Type));
        } else if let Some(node) = prefix {
            self.parts.truncate(start);
            self.parts.push(NamePart::Reference(node, NamePlace::Type));
        }
        Ok(())
    }

    /// `<extended-qualifier>* <CV-qualifiers> <type>`
    fn qualified_type(&mut self) -> NameResult<()> {
        while let [b'U', b'0'..=b'9', ..] = self.rest() {
            self.take(1)?;
            self.source_name()?;
            if self.peek() == Some(b'I') {
                self.template_arguments()?;
            }
        }
        self.qualifiers()?;
        if is_one_of("Do DO Dw Dx", self.next_two()) || self.is_next("F") {
            self.function_type()
        } else {
            self.ty()
        }
    }

    /// `<function-type>`
    fn function_type(&mut self) -> NameResult<()> {
        if self.take_if("DO")? {
            self.expression()?;
            self.expect("E")?;
        } else if self.take_if("Dw")? {
            while !self.take_if("E")? {
                self.ty()?;
            }
        } else {
            self.take_if("Do")?;
        }
        self.take_if("Dx")?;
        self.expect("F")?;
        self.take_if("Y")?;
        self.ty()?;
        let start = self.parts.len();
        while !matches!(self.rest(), [b'E', ..] | [b'R' | b'O', b'E', ..]) {
            self.listed_type()?;
        }
        if self.parts.len() == start {
            self.parts.push(NamePart::Instead("v"));
        }
        if self.peek() != Some(b'E') {
            self.take(1)?;
        }
        self.expect("E")
    }

    /// `<decltype>`
    pub(super) fn decltype(&mut self) -> NameResult<()> {
        self.take(2)?;
        self.expression()?;
        self.expect("E")
    }
}
