//! Whole mangled names, and the types of functions in them, by the productions of the grammar.

use super::reader::{
    NamePart, NamePlace, NameReader, NameResult, NodeKind, ParameterScope, Unreadable,
};

/// The replacement of a template parameter object, which the demangler does not support: a template
/// of this name, with the object as its argument.
const OBJECT: &str = "25template_parameter_object";

/// The replacement of the initializer of a module, which the demangler does not support: a template
/// of this name, with the module as its argument.
const MODULE_INITIALIZER: &str = "18module_initializer";

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
        self.leave_out_empty_packs();
        Ok(std::mem::take(&mut self.parts))
    }

    /// `<encoding>`
    pub(super) fn encoding(&mut self) -> NameResult<()> {
        let start = self.parts.len();
        self.unconstrained_encoding()?;
        self.enclose(start);
        self.constraint()
    }

    /// `<encoding>` up to the constraint of the function.
    fn unconstrained_encoding(&mut self) -> NameResult<()> {
        self.nested(|it| {
            let scope = std::mem::replace(&mut it.scope, ParameterScope::Unknown);
            if matches!(it.peek(), Some(b'T' | b'G')) {
                it.special_name()?;
            } else {
                let name = it.name(false)?;
                it.parts.push(NamePart::Node(name, NamePlace::Type));
                it.type_of_function(name)?;
            }
            it.scope = scope;
            Ok(())
        })
    }

    /// `[<bare-function-type>]` after the name of a function.
    fn type_of_function(&mut self, name: usize) -> NameResult<()> {
        let outside = self.parts.len();
        let template = self.function_template(name);
        if let Some((template, list)) = template {
            self.lists[list].is_of_function = true;
            self.scope = ParameterScope::Arguments(list);
            if self.is_at_end_of_encoding() {
                return Ok(());
            }
            if self.has_return_type(template) {
                self.ty()?;
            } else if self.peek() != Some(b'v') {
                // The demangler takes the first type for a return type, and does not print it.
                self.parts.push(NamePart::Instead("v"));
                self.is_clearer = true;
            }
        }
        let (start, at) = (self.parts.len(), self.at);
        let returned = self.forget_mentioned();
        while !self.is_at_end_of_encoding() {
            self.listed_type()?;
        }
        if self.parts.len() == start && self.at > at {
            self.parts.push(NamePart::Instead("v"));
        }
        if let Some((_, list)) = template
            && self.is_return_type_in_the_way(list, returned)
        {
            self.parts.splice(outside..start, [NamePart::Instead("v")]);
        }
        Ok(())
    }

    fn is_at_end_of_encoding(&self) -> bool {
        matches!(self.peek(), None | Some(b'E' | b'.' | b'_' | b'@' | b'Q'))
    }

    /// Returns the template that a name is an instance of, and the list of its arguments.
    fn function_template(&self, name: usize) -> Option<(usize, usize)> {
        let mut name = name;
        while let NodeKind::Around(within) = self.nodes[name].kind {
            name = within;
        }
        match self.nodes[name].kind {
            NodeKind::Name {
                prefix: Some(template),
                arguments: Some(list),
                ..
            } => Some((template, list)),
            _ => None,
        }
    }

    /// Returns whether the types of the instances of a template begin with a return type:
    /// constructors and conversion operators have none.
    fn has_return_type(&self, template: usize) -> bool {
        let Some(NamePart::Text(start, end)) = self.nodes[template].parts.first() else {
            return true;
        };
        let text = &self.symbol[*start..*end];
        !text.starts_with('C') && text != "cv"
    }

    /// `[Q <constraint-expression>]`
    pub(super) fn constraint(&mut self) -> NameResult<()> {
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
        if self.take_if("GI")? {
            self.replace(start, MODULE_INITIALIZER);
            self.parts.push(NamePart::Instead("IN"));
            while self.is_next("W") {
                self.skip(|it| it.module_prefix())?;
                self.source_name()?;
            }
            self.parts.push(NamePart::Instead("EE"));
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
}
