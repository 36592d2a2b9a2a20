//! Expressions in mangled names, by the productions of the grammar.

use super::Keep;
use super::names::{OPERATORS, is_one_of};
use super::reader::{NamePart, NameReader, NameResult, Unreadable};

/// The replacement of an expression: a name that the demangler prints as it is.
const ELLIPSIS: &str = "3...";

/// The operands of operators: `t` a type, `e` an expression, `*` expressions up to `E`, `a`
/// template arguments up to `E`, `s` a source name, `b` a name without its scope, `n` a number, `E`
/// itself.
const KNOWN: [(&str, &str); 10] = [
    ("cc sc dc rc", "te"),
    ("ti st at", "t"),
    ("te sz az nx sp tw dl da", "e"),
    ("ps ng ad de co nt", "e"),
    ("dt ds pt", "ee"),
    ("qu", "eee"),
    ("cl il", "*"),
    ("tl", "t*"),
    ("sP", "a"),
    ("tr", ""),
];

/// The operands of operators that the demangler does not support.
const UNKNOWN: [(&str, &str); 6] = [
    ("aw", "e"),
    ("dx", "ee"),
    ("dX", "eee"),
    ("di", "se"),
    ("cp", "b*"),
    ("mc", "tenE"),
];

impl NameReader<'_> {
    /// `<expression>`
    pub(super) fn expression(&mut self) -> NameResult<()> {
        self.nested(Self::expression_at_this_depth)
    }

    fn expression_at_this_depth(&mut self) -> NameResult<()> {
        let start = self.parts.len();
        let takes_arguments = std::mem::replace(&mut self.takes_arguments, true);
        if self.keep == Keep::Names && !self.is_skipping {
            self.skip(|it| it.expression_of_any_kind().map(|_| ()))?;
            self.parts.push(NamePart::Instead(ELLIPSIS));
        } else if !self.expression_of_any_kind()? && !self.is_skipping {
            self.replace(start, ELLIPSIS);
        }
        self.takes_arguments = takes_arguments;
        Ok(())
    }

    /// Reads an expression; returns whether the demangler supports it.
    fn expression_of_any_kind(&mut self) -> NameResult<bool> {
        match self.peek() {
            Some(b'L') => return self.literal().map(|()| true),
            Some(b'T') => return self.parameter_in_expression().map(|()| true),
            Some(b'0'..=b'9') => return self.base_unresolved_name().map(|()| true),
            Some(b'u') => {
                self.take(1)?;
                self.source_name()?;
                return self.template_arguments_to_end().map(|()| false);
            }
            _ => {}
        }
        let rest = self.rest();
        let operator = self.next_two();
        match operator {
            "fp" => self.function_parameter()?,
            "fL" if rest.get(2).is_some_and(u8::is_ascii_digit) => self.function_parameter()?,
            "fl" | "fr" | "fL" | "fR" => {
                self.take(2)?;
                self.operator_name()?;
                self.operands(if operator.ends_with(['L', 'R']) {
                    "ee"
                } else {
                    "e"
                })?;
                return Ok(false);
            }
            "gs" if !rest.starts_with(b"gsgs") => {
                self.take(2)?;
                return self.expression_of_any_kind();
            }
            "nw" | "na" => self.new_expression()?,
            "cv" => {
                self.take(2)?;
                self.type_of_conversion()?;
                let is_list = self.take_if("_")?;
                self.operands(if is_list { "*" } else { "e" })?;
            }
            "sZ" => {
                self.take(2)?;
                match self.peek() {
                    Some(b'T') => self.parameter_in_expression()?,
                    _ => self.function_parameter()?,
                }
            }
            "so" => self.subobject()?,
            "sr" | "on" | "dn" => {
                // A substitution may stand for such a type, which was removed.
                let refers = self.is_next("srS") || self.is_next("srNS");
                let is_known = !(self.is_type_of_gcc_next() || self.has_changed && refers);
                return self.unresolved_name().map(|()| is_known);
            }
            "rq" | "rQ" => return self.requirements().map(|()| false),
            "pp" | "mm" => {
                self.take(2)?;
                self.take_if("_")?;
                self.expression()?;
            }
            _ => {
                let operands = |table: &[(&str, &'static str)]| {
                    let mut rows = table.iter();
                    rows.find(|(operators, _)| is_one_of(operators, operator))
                        .map(|(_, operands)| *operands)
                };
                let (operands, is_known) = match (operands(&KNOWN), operands(&UNKNOWN)) {
                    (Some(operands), _) => (operands, true),
                    (None, Some(operands)) => (operands, false),
                    (None, None) if is_one_of(OPERATORS, operator) => ("ee", true),
                    (None, None) => return Err(Unreadable),
                };
                self.take(2)?;
                match operator {
                    "dl" | "da" => self.retried(|it| it.operands(operands))?,
                    _ => self.operands(operands)?,
                }
                return Ok(is_known);
            }
        }
        Ok(true)
    }

    /// Reads the operands of an operator: see [`KNOWN`].
    fn operands(&mut self, kinds: &str) -> NameResult<()> {
        for kind in kinds.bytes() {
            match kind {
                b't' => self.ty()?,
                b'e' => self.expression()?,
                b'*' => {
                    while !self.take_if("E")? {
                        self.expression()?;
                    }
                }
                b'a' => self.template_arguments_to_end()?,
                b's' => self.source_name()?,
                b'b' => self.base_unresolved_name()?,
                b'n' => self.number()?,
                _ => self.expect("E")?,
            }
        }
        Ok(())
    }

    /// `nw <expression>* _ <type> [<initializer>] E`
    fn new_expression(&mut self) -> NameResult<()> {
        // The demangler also tries a binary operator.
        self.is_ambiguous = true;
        self.take(2)?;
        while !self.take_if("_")? {
            self.expression()?;
        }
        self.ty()?;
        if self.take_if("pi")? {
            return self.operands("*");
        }
        if self.is_next("il") {
            self.expression()
        } else {
            self.expect("E")
        }
    }

    /// `so <type> <expression> [<offset number>] <union-selector>* [p] E`
    fn subobject(&mut self) -> NameResult<()> {
        self.take(2)?;
        self.operands("ten")?;
        while self.take_if("_")? {
            self.number()?;
        }
        self.take_if("p")?;
        self.expect("E")
    }

    /// `<function-param>`
    fn function_parameter(&mut self) -> NameResult<()> {
        if self.take_if("fpT")? {
            return Ok(());
        }
        if self.take_if("fL")? {
            self.number()?;
            self.expect("p")?;
        } else {
            self.expect("fp")?;
        }
        self.qualifiers()?;
        self.number()?;
        self.expect("_")
    }

    /// `rq <requirement>+ E`, `rQ <bare-function-type> _ <requirement>+ E`
    fn requirements(&mut self) -> NameResult<()> {
        if self.take_if("rQ")? {
            while !self.take_if("_")? {
                self.ty()?;
            }
        } else {
            self.expect("rq")?;
        }
        while !self.take_if("E")? {
            if self.take_if("X")? {
                self.expression()?;
                self.take_if("N")?;
                if self.take_if("R")? {
                    self.name_part(false)?;
                }
            } else if self.take_if("T")? {
                self.ty()?;
            } else {
                self.expect("Q")?;
                self.expression()?;
            }
        }
        Ok(())
    }

    /// Returns whether an unresolved name is next in which GCC writes a type where the grammar has
    /// an unresolved type: `srSt3fooIT_E3bar`, `srN3foo3barE3baz`. The demangler misreads the first
    /// one.
    fn is_type_of_gcc_next(&self) -> bool {
        let rest = self.rest();
        let of_namespace = rest.strip_prefix(b"srN").and_then(|rest| rest.first());
        let is_named = of_namespace.is_some_and(u8::is_ascii_digit);
        is_named || self.is_next("srSt") || self.is_next("srNSt")
    }

    /// `<unresolved-name>`
    fn unresolved_name(&mut self) -> NameResult<()> {
        if self.is_type_of_gcc_next() {
            self.take(2)?;
            self.ty()?;
            return self.base_unresolved_name();
        }
        if self.take_if("srN")? {
            self.ty()?;
            while !self.take_if("E")? {
                self.simple_id()?;
            }
            return self.base_unresolved_name();
        }
        if !self.take_if("sr")? {
            return self.base_unresolved_name();
        }
        if self.is_digit_next() {
            // `sr <simple-id>+ E`; GCC writes a type here, which has no end marker of its own.
            let mark = self.mark();
            if self.qualifiers_and_unresolved_name().is_ok() {
                return Ok(());
            }
            self.back_to(&mark);
        }
        self.ty()?;
        self.base_unresolved_name()
    }

    fn qualifiers_and_unresolved_name(&mut self) -> NameResult<()> {
        self.nested(|it| {
            while !it.take_if("E")? {
                it.simple_id()?;
            }
            it.base_unresolved_name()
        })
    }

    /// `<base-unresolved-name>`
    fn base_unresolved_name(&mut self) -> NameResult<()> {
        if self.take_if("dn")? {
            return if self.is_digit_next() {
                self.simple_id()
            } else {
                self.ty()
            };
        }
        if self.take_if("on")? {
            self.operator_name()?;
            return match self.peek() {
                Some(b'I') => self.template_arguments(),
                _ => Ok(()),
            };
        }
        self.simple_id()
    }

    /// `<simple-id>`
    fn simple_id(&mut self) -> NameResult<()> {
        self.source_name()?;
        match self.peek() {
            Some(b'I') => self.template_arguments(),
            _ => Ok(()),
        }
    }

    /// `<expr-primary>`
    pub(super) fn literal(&mut self) -> NameResult<()> {
        self.retried(Self::literal_once)
    }

    fn literal_once(&mut self) -> NameResult<()> {
        self.expect("L")?;
        if self.take_if("_Z")? || self.take_if("Z")? {
            self.encoding()?;
            return self.expect("E");
        }
        self.ty()?;
        self.take_while(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'n' | b'_'))?;
        self.expect("E")
    }
}
