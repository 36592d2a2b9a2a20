//! The modules of a minidump, as a request names them.

use minidump::system_info::Os;
use minidump::{MinidumpModule, MinidumpModuleList, Module as _};

use crate::api::symbolicator::{Hex, Module};
use crate::domain::{CodeId, ObjectType};

/// Returns the modules sorted by their addresses, each with its index in the list.
pub(super) fn of(list: &MinidumpModuleList, os: Os) -> Vec<(usize, Module)> {
    let object_type = match os {
        Os::Windows => ObjectType::Pe,
        Os::MacOs | Os::Ios => ObjectType::Macho,
        Os::Linux | Os::Android | Os::Solaris => ObjectType::Elf,
        Os::Ps3 | Os::NaCl | Os::Unknown(_) => ObjectType::Unknown,
    };
    let modules = list.iter().enumerate();
    let mut modules: Vec<(usize, Module)> = modules
        .map(|(index, listed)| (index, module(listed, object_type)))
        .collect();
    modules.sort_by_key(|(_, module)| module.image_addr);
    modules
}

fn module(listed: &MinidumpModule, object_type: ObjectType) -> Module {
    let code_id = listed
        .code_identifier()
        .map(|id| CodeId::new(id.to_string()));
    let code_file = listed.code_file();
    let code_file = Some(&*code_file).filter(|name| !name.is_empty());
    Module {
        object_type,
        code_id: code_id.filter(|id| !id.is_nil()),
        code_file: code_file.map(Into::into),
        debug_id: listed.debug_identifier().filter(|id| !id.is_nil()),
        debug_file: listed.debug_file().map(|name| name.into_owned()),
        debug_checksum: None,
        image_addr: Hex(listed.base_address()),
        image_size: Some(listed.size()),
    }
}
