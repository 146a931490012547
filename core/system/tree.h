/* core/system/tree.h - removes directories with all that is in them. */
#ifndef CORE_SYSTEM_TREE_H
#define CORE_SYSTEM_TREE_H

#define ST_TREE_DEPTH_MAX 16u

/** Remove everything in an open directory but the entry `except` (NULL: everything).  Links are removed, never followed; below
 *  ST_TREE_DEPTH_MAX directories stay (-ELOOP).  What is gone already is fine: several may remove one tree at once.
 *  @return 0 or the first -errno; what can go goes */
int st_tree_clear(int dir_fd, const char *except);
/** The same of the directory `name` in an open one, which goes, too; a link or file of that name goes alone. */
int st_tree_remove(int parent_fd, const char *name);

#endif
